"""The compute party's command: it serves one run after the other, whatever became of the one before."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties import cli, compute, trusted
from parties.auditor import judge_of
from splitlearn import audit
from splitlearn.channel import connect
from splitlearn.channel.base import Released
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.errors import IdentityError, ManifestError, PeerError
from splitlearn.identity import Identity, PartyName
from splitlearn.manifest import load_job
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames
from splitlearn.wire.messages import Resume
from tests.jobs import gpuhost, make_clinic, make_gpuhost


def log_of(folder: Path, run: str) -> audit.Report:
    return audit.verify(folder / "gpuhost" / f"clinic-{run}" / "audit", judge_of=judge_of)


def test_two_runs_get_a_folder_each_and_share_the_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        job = make_clinic(tmp_path, {"run": {"name": name, "folder": name}})
        with gpuhost(tmp_path, job):
            trusted.train(job, threads=1)
        assert log_of(tmp_path, name).ok
        held = Checkpoints(tmp_path / "gpuhost" / f"clinic-{name}" / "checkpoints").held()
        assert held == (2, 3)
    assert log_of(tmp_path, "one").messages_by_kind["in weights"] == 1
    assert "in weights" not in log_of(tmp_path, "two").messages_by_kind
    assert len(list((tmp_path / "gpuhost" / "weights").iterdir())) == 1


def test_a_model_folder_of_its_own_saves_sending(tmp_path: Path) -> None:
    job = make_clinic(tmp_path)
    with gpuhost(tmp_path, job, model=tmp_path / "clinic" / "model"):
        trusted.train(job, threads=1)
    assert "in weights" not in log_of(tmp_path, "films").messages_by_kind
    assert not (tmp_path / "gpuhost" / "weights").exists()


def test_what_it_keeps_holds_no_text_no_label_and_no_embedding(tmp_path: Path) -> None:
    job = make_clinic(tmp_path)
    with gpuhost(tmp_path, job):
        trusted.train(job, threads=1)
    for file in (tmp_path / "gpuhost").rglob("*"):
        if file.is_file():
            raw = file.read_bytes()
            for secret in (b"story", b"bright", b'"good"', b"embeddings", b"classifier", b"pooler"):
                assert secret not in raw, f"{secret!r} in {file.name}"


def test_a_run_that_fails_is_told_and_the_next_one_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_clinic(tmp_path)
    with gpuhost(tmp_path, job) as port:
        identity = Identity.load(load_job(job).identity.folder)
        channel = connect(
            f"127.0.0.1:{port}",
            identity=identity,
            peer=PartyName(federation="fed.example", party="gpuhost", role=Role.COMPUTE),
            run="rude",
            deadline_s=20,
        )
        raw = frames.encode(Kind.RESUME, seq=1, meta=Resume(0, 0))
        channel.send(Released(kind=Kind.RESUME, seq=1, raw=raw), deadline_s=20)
        with pytest.raises(PeerError, match=r"says: .*expected offer"):
            channel.receive(timeout_s=20)
        channel.close()
        trusted.train(job, threads=1)
    told = capsys.readouterr().err
    assert "run not finished: the conversation began with resume; expected offer" in told
    assert "run 'films' of trusted.clinic.fed.example is finished" in told
    assert log_of(tmp_path, "films").ok


def test_settings_that_will_not_do_are_named_before_it_listens(tmp_path: Path) -> None:
    make_clinic(tmp_path)
    settings = make_gpuhost(tmp_path, port=1)
    text = settings.read_text()
    for old, new, sentence in (
        ("clinic/compute.toml", "none.toml", "policy.file"),
        ("deadline_s = 20.0", "deadlines = 20.0", "deadline_s"),
        ('party = "clinic"', "", "peer.party"),
        (
            "deadline_s = 20.0",
            'device = "cuda:99"',
            r'compute.toml: run.device is "cuda:99", and torch',
        ),
    ):
        settings.write_text(text.replace(old, new))
        with pytest.raises(ManifestError, match=sentence):
            compute.compute(settings)
    settings.write_text(re.sub(r'folder = "[^"]*gpuhost-compute"', 'folder = "none"', text))
    with pytest.raises((IdentityError, ManifestError), match="none"):
        compute.compute(settings)


def test_the_help_teaches_by_example() -> None:
    done = CliRunner().invoke(cli.app, ["compute", "--help"])
    assert done.exit_code == 0
    for words in ("compute.toml", "[policy]", "splitlearn compute compute.toml --runs 1"):
        assert words in done.output
