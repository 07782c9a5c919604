"""Our own commands as processes, for demos that play several parties on one machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from splitlearn.errors import ChannelError

__all__ = ["COMMAND", "at_work", "checked", "ended"]

COMMAND = (sys.executable, "-m", "parties.cli")
# Seconds that a process has to end after it was asked to.
_PARTING_S = 20.0


@contextmanager
def at_work(
    words: Sequence[str], *, log: Path, cwd: Path | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process at work until the context ends; what it says goes to the file `log`."""
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            words,
            cwd=cwd,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PARTING_S)
            # What it has started and is still at work goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(process: "subprocess.Popen[bytes]", *, log: Path, patience_s: float) -> None:
    """Wait until it ends well. Raises ChannelError with its last line."""
    try:
        code = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        raise ChannelError(f"a process of the demo did not end; see {log}") from None
    if code:
        lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise ChannelError(f"a process of the demo failed: {lines[-1]}; see {log}")


def checked(
    *words: str, cwd: Path | None = None, quiet: bool = True, timeout_s: float = 60
) -> None:
    """One of our own commands to its end. Raises ChannelError with its last line if it fails."""
    done = subprocess.run(  # noqa: S603 - our own command
        [*COMMAND, *words],
        cwd=cwd,
        capture_output=quiet,
        text=True,
        timeout=timeout_s,
        check=False,
        env=_environment(),
    )
    if done.returncode:
        lines = (done.stderr or "").strip().splitlines() or ["see above"]
        raise ChannelError(f"splitlearn {words[0]} failed: {lines[-1]}")


def _environment() -> dict[str, str]:
    """A command may run in a demo's folder, so what it imports has to be found from there."""
    paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
