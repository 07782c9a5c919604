"""The command's tree, its exit codes, its one line for an error, and what importing it costs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from parties import cli
from splitlearn import errors
from splitlearn.errors import ManifestError, RefusedError, SplitLearnError
from splitlearn.roles import Role
from tests.federation import make_identity

ROOT = Path(__file__).parents[2]


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command below, as the words that a user types."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


COMMANDS = list(commands(typer.main.get_command(cli.app)))


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int | str | None, str, str]:
    """Exit code, standard output and standard error of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["splitlearn", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, *capsys.readouterr()


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `splitlearn doctor` end with `error`, however it came about."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("splitlearn.identity.examine", fail)


def test_the_tree_has_all_its_commands() -> None:
    leaves = {" ".join(words) for words in COMMANDS if words not in {w[:-1] for w in COMMANDS if w}}
    assert leaves == {
        *(f"trusted {verb}" for verb in ("preflight", "train", "evaluate", "generate", "export")),
        "compute",
        *(f"audit {verb}" for verb in ("verify", "reconcile", "show", "redact")),
        *(f"audit {verb}" for verb in ("report", "export", "attack")),
        *(f"federation {verb}" for verb in ("create", "serve", "invite", "approve", "revoke")),
        *(f"policy {verb}" for verb in ("list", "show", "check", "explain")),
        *("coordinator up", "coordinator nodes", "generator join", "generator run", "pretrain"),
        *(f"vocab {verb}" for verb in ("count", "train", "show", "key")),
        *("encoder serve", "decoder train", "decoder translate", "demo-translate"),
        *("join", "request", "install", "doctor", "demo", "demo-pretrain", "plan", "link emulate"),
    }


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_teaches_by_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, shown, _ = run(monkeypatch, capsys, *words, "--help")
    assert code == 0
    lines = [line.strip() for line in shown.splitlines()]
    command = " ".join(("splitlearn", *words))
    assert any(line.startswith(f"Usage: {command}") for line in lines)
    assert any(line.startswith(command) or f": {command}" in line for line in lines)


@pytest.mark.parametrize(
    "words", [(), ("trusted",), ("federation",), ("audit",), ("policy",), ("link",)]
)
def test_a_group_without_a_command_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, shown, _ = run(monkeypatch, capsys, *words)
    assert code == 2
    assert "Commands" in shown


@pytest.mark.parametrize(
    "error", [getattr(errors, name) for name in errors.__all__], ids=lambda error: error.__name__
)
def test_an_error_of_ours_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[SplitLearnError],
) -> None:
    sentence = "[bold]run[/bold] :boom: of a\nlibrary's  two lines; " + "long " * 60 + "end"
    more = {"rule": "no-rule"} if error is RefusedError else {}
    raising(monkeypatch, error(sentence, **more))
    code, out, err = run(monkeypatch, capsys, "doctor")
    assert (code, out) == (error.exit_code, "")
    assert err == "error: " + " ".join(sentence.split()) + "\n"


def test_an_error_of_nobodys_is_no_error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake of this program shows itself as one."""
    raising(monkeypatch, ZeroDivisionError("ours"))
    monkeypatch.setattr(sys, "argv", ["splitlearn", "doctor"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_ctrl_c_ends_with_the_shells_code_and_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert run(monkeypatch, capsys, "doctor") == (130, "", "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("trian",), "trian"),
        (("compute", "--runs", "-1"), "--runs"),
        (("join",), "token"),
        (("trusted", "train", "job.toml", "--thread", "2"), "--thread"),
    ],
)
def test_a_command_line_that_is_wrong_is_a_mistake_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    why: str,
) -> None:
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == ManifestError.exit_code
    assert why in err.lower()
    assert f"splitlearn {' '.join(words[:1])}" in err or "splitlearn --help" in err


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_help_and_the_doctor_and_joining_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from parties import cli\n"
        "def run(*words):\n"
        "    sys.argv = ['splitlearn', *words]\n"
        "    try: cli.main()\n"
        "    except SystemExit: pass\n"
        "run('--help')\n"
        "run('trusted', 'train', '--help')\n"
        "heavy = {'torch', 'transformers', 'datasets', 'grpc', 'numpy', 'cryptography'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        f"run('doctor', '--folder', {str(tmp_path)!r})\n"
        f"run('join', 'sl1.no', '--folder', {str(tmp_path)!r})\n"
        f"run('audit', 'verify', {str(tmp_path)!r})\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]", "[]"]


def test_a_job_that_is_wrong_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from parties import cli\n"
        f"sys.argv = ['splitlearn', 'trusted', 'train', {str(tmp_path / 'none.toml')!r}]\n"
        "try: cli.main()\n"
        "finally: print('torch' in sys.modules)\n"
    )
    done = python("-c", program)
    assert done.returncode == 2
    assert done.stdout == "False\n"
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_module_is_the_command() -> None:
    done = python("-m", "parties.cli", "--help")
    assert done.returncode == 0
    assert "splitlearn trusted train job.toml" in done.stdout
    assert done.stderr == ""


def test_a_compute_party_that_waits_ends_at_ctrl_c_with_one_line(tmp_path: Path) -> None:
    make_identity(tmp_path, "gpuhost", Role.COMPUTE)
    settings = tmp_path / "compute.toml"
    settings.write_text(
        '[run]\nfolder = "runs"\n[identity]\nfolder = "gpuhost-compute"\n'
        '[peer]\nparty = "clinic"\nlisten = "127.0.0.1:0"\n'
        f'[policy]\nfile = "{ROOT / "parties" / "policies" / "compute.toml"}"\n'
    )
    with subprocess.Popen(
        [sys.executable, "-m", "parties.cli", "compute", str(settings)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        before = [next(lines), next(lines)]
        process.send_signal(signal.SIGINT)
        _, after = process.communicate(timeout=60)
    assert before[0] == "waiting for work from trusted.clinic.fed.example\n"
    assert before[1].startswith("listening on port ")
    # A signal in the middle of a line has rich write that line again.
    assert after.removeprefix(before[1]) == "interrupted; start it again to go on\n"
    assert process.returncode == 130


class OutOfMemoryError(RuntimeError):
    """As torch names a device's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["python", "device", "torch"],
)
def test_a_machine_without_memory_left_is_told_what_takes_less(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    raising(monkeypatch, error)
    code, _, told = run(monkeypatch, capsys, "doctor")
    assert code == 2
    assert told.startswith("error: ")
    assert "schedule.micro_batches" in told
    assert "Traceback" not in told


def test_another_fault_of_ours_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, RuntimeError("a bug"))
    monkeypatch.setattr(sys, "argv", ["splitlearn", "doctor"])
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()
