"""What a user sees when a file, a folder or a disk is not what the run needs.

A run folder that cannot be written or that fills up ends the command with exit code 6: what cannot be
recorded is not sent. A job that is wrong ends it with 2, one that its policy forbids with 3, and then
nothing was started.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from parties import cli, compute
from splitlearn.errors import AuditError, PeerError, RefusedError
from splitlearn.identity import Identity
from splitlearn.roles import Role
from tests.federation import make_identity
from tests.integration.clinic import (
    WAIT_S,
    Clinic,
    Outcome,
    Peer,
    free_port,
    honest,
    splitlearn,
    write_model,
)
from tests.rig import compute_party

POLICIES = Path(cli.__file__).parent / "policies"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def clinic(tmp_path: Path, model: Path) -> Clinic:
    make_identity(tmp_path, "clinic", Role.TRUSTED)
    return Clinic(tmp_path, model)


@pytest.fixture
def gpuhost(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "gpuhost", Role.COMPUTE)


# Folders that cannot be written


@pytest.mark.parametrize(("place", "code"), [("run", 2), ("run/audit", 6), ("run/audit/log", 6)])
def test_a_log_folder_that_cannot_be_written_starts_nothing(
    clinic: Clinic, place: str, code: int
) -> None:
    """A file stands where the folder should be, which stops even root."""
    in_its_place = clinic.folder / place
    in_its_place.parent.mkdir(parents=True, exist_ok=True)
    in_its_place.write_text("")
    outcome = splitlearn("trusted", "train", clinic.job())
    assert str(clinic.folder / "run") in outcome.error
    assert "cannot be" in outcome.error
    assert "looking for" not in outcome.err
    assert outcome.code == code


def compute_settings(folder: Path, *, port: int = 0) -> Path:
    path = folder / "compute.toml"
    path.write_text(
        '[run]\nfolder = "runs"\n[identity]\nfolder = "gpuhost-compute"\n'
        f'[peer]\nparty = "clinic"\nlisten = "127.0.0.1:{port}"\n'
        f'[policy]\nfile = "{POLICIES / "compute.toml"}"\n'
    )
    return path


def test_a_compute_party_without_a_run_folder_does_not_begin_to_wait(
    tmp_path: Path, gpuhost: Identity
) -> None:
    (tmp_path / "runs").write_text("")
    outcome = splitlearn("compute", compute_settings(tmp_path))
    assert f"run folder {tmp_path / 'runs'} cannot be written (File exists)" in outcome.error
    assert outcome.err.splitlines() == [outcome.error]
    assert outcome.code == AuditError.exit_code


def test_a_compute_party_that_cannot_open_a_runs_log_ends_and_tells_its_peer(
    clinic: Clinic, gpuhost: Identity
) -> None:
    run = clinic.folder / "runs" / "clinic-tiny"
    run.mkdir(parents=True)
    (run / "audit").write_text("")
    port = free_port()
    settings = compute_settings(clinic.folder, port=port)
    with ThreadPoolExecutor(1) as other:
        serving = other.submit(compute.compute, settings, runs=1, threads=0)
        outcome = splitlearn("trusted", "train", clinic.job(f"127.0.0.1:{port}"))
        with pytest.raises(AuditError, match=rf"log folder {run / 'audit'} cannot be written"):
            serving.result(WAIT_S)
    assert outcome.error.endswith("the run was stopped here: AuditError")
    assert outcome.code == PeerError.exit_code


# Disks that fill up


Command = Callable[..., Outcome]


@contextlib.contextmanager
def tiny_disk(folder: Path, *, kib: int, file_kib: int) -> Iterator[Command]:
    """A file system of so many KiB at `folder`, and how to run a command that writes to it.

    Who may not mount gets a command whose files cannot grow beyond `file_kib`.
    """
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        yield lambda *words: limited(words, limit_bytes=file_kib * 1024)
        return
    try:
        yield splitlearn
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def limited(words: Sequence[object], *, limit_bytes: int) -> Outcome:
    """A command in a process whose files meet a full disk at that size."""
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
        "from parties import cli\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *(str(word) for word in words)],
        cwd=POLICIES.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("place", "kib", "file_kib", "why"),
    [
        ("run/audit", 16, 256, "nothing is sent without a record: make room or choose another"),
        ("run/checkpoints", 8, 32, "checkpoint 0 cannot be written to"),
    ],
)
def test_a_full_disk_stops_the_run_with_what_to_do(
    clinic: Clinic, gpuhost: Identity, place: str, kib: int, file_kib: int, why: str
) -> None:
    party = compute_party(clinic.folder)
    with Peer(gpuhost, honest(party)) as peer:
        schedule: dict[str, object] = {"batch_size": 2, "epochs": 16}
        job = clinic.job(peer.address, schedule=schedule)
        with tiny_disk(clinic.folder / place, kib=kib, file_kib=file_kib) as command:
            outcome = command("trusted", "train", job)
        ended = peer.ended()
    assert why in outcome.error
    assert str(clinic.folder / place) in outcome.error
    assert outcome.code == AuditError.exit_code
    assert str(ended).endswith("the run was stopped here: AuditError")


# Jobs that are wrong, or forbidden


def test_an_unknown_key_is_named_with_what_is_allowed_and_nothing_starts(clinic: Clinic) -> None:
    outcome = splitlearn("trusted", "train", clinic.job(cut={"botom": 2}))
    assert f"{clinic.folder / 'job.toml'}: cut.botom" in outcome.error
    assert "bottom" in outcome.error
    assert outcome.err.splitlines() == [outcome.error]
    assert outcome.code == 2
    assert not clinic.run.exists()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cut": {"bottom": 2, "top": 2}}, "cut.top"),
        ({"cut": {"bottom": 1, "top": -1, "train_bottom": True}}, "cut.train_bottom"),
        ({"schedule": {"epochs": 1, "steps": 4}}, "schedule.epochs"),
        ({"peer": {"listen": "127.0.0.1:0"}}, "peer.dial"),
        ({"model": {"path": "no/such/model/here"}}, "model.path"),
        ({"codec": {"activation": "mp3"}}, "codec.activation"),
        ({"policy": {"file": "none.toml"}}, "policy.file"),
    ],
)
def test_an_impossible_key_is_named(
    clinic: Clinic, changes: dict[str, dict[str, object]], key: str
) -> None:
    for command in ("train", "evaluate", "export"):
        outcome = splitlearn("trusted", command, clinic.job(**changes))
        assert f"job.toml: {key} " in outcome.error
        assert outcome.code == 2
    assert not clinic.run.exists()


def test_a_policy_without_a_rule_for_gradients_forbids_mode_full(clinic: Clinic) -> None:
    strict: dict[str, object] = {
        "file": str(Path(cli.__file__).parent / "policies" / "strict.toml")
    }
    outcome = splitlearn("trusted", "train", clinic.job(cut={"mode": "full"}, policy=strict))
    assert "the job needs gradient to go out" in outcome.error
    assert "policy 'strict' has no rule" in outcome.error
    assert outcome.code == RefusedError.exit_code
    assert "looking for" not in outcome.err
    assert not (clinic.run / "audit").exists()


def test_a_policy_that_is_none_is_a_mistake_of_the_user(clinic: Clinic, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('name = "x"\n[[rules]]\nid = "y"\n')
    outcome = splitlearn("trusted", "train", clinic.job(policy={"file": "policy.toml"}))
    assert "policy.toml" in outcome.error
    assert outcome.code == 2


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_command_that_comes_too_early_says_what_to_run_first(
    clinic: Clinic, command: str
) -> None:
    data: dict[str, object] = {"evaluate": "train.jsonl"}
    outcome = splitlearn("trusted", command, clinic.job(data=data))
    assert "run splitlearn trusted train" in outcome.error
    assert outcome.code == 2
