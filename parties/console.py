"""What a person at a terminal sees: one console, one way to end, one progress line for engine events."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from splitlearn.engine.events import (
    Answered,
    Began,
    Evaluated,
    Event,
    Finished,
    RolledBack,
    Saved,
    SentWeights,
    StepDone,
    Watched,
)

__all__ = ["INTERRUPTED", "Display", "console", "interruptible", "size"]

# The shell's own code for a process ended by Ctrl-C.
INTERRUPTED = 130

console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


@contextmanager
def interruptible(what_next: str) -> Iterator[None]:
    """Turn Ctrl-C into one line and exit code 130; `what_next` says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; {what_next}", markup=False)
        raise SystemExit(INTERRUPTED) from None


def size(count: float) -> str:
    """Bytes as a person reads them.

    >>> size(1536), size(12_345_678)
    ('1.5 kB', '12.3 MB')
    """
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


class Display:
    """Shows an engine's events as they come: a bar where there is an end, a line for what matters.

    On a terminal the bar moves; in a file or a CI log only the lines are written.
    """

    def __init__(self, what: str, *, total: int | None) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar: TaskID = self._progress.add_task(what, total=total, facts="")
        self._what, self._total = what, total
        self._bytes = 0
        self._told_s = time.monotonic()

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, *, total: int) -> None:
        """Start the bar anew for another piece of work."""
        self._what, self._total = what, total
        self._progress.reset(self._bar, total=total, description=what, facts="")

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Began(step, peer):
                self._progress.update(self._bar, completed=step)
                console.print(f"working with {peer}, from step {step}", markup=False)
            case SentWeights(index, count):
                self._facts(f"weights {index + 1}/{count}")
            case StepDone():
                self._bytes += event.sent_bytes + event.received_bytes
                moved = f", {size(self._bytes)}" if self._bytes else ""
                self._at(event.step + 1, f"loss {event.loss:.4f}{moved}")
            case Evaluated(done):
                self._at(done, "")
            case Watched(step, score):
                console.print(f"step {step}: score {score:.4f}", markup=False)
            case Answered(step):
                self._at(step + 1, "")
            case Saved(step):
                self._facts(f"checkpoint {step}")
            case RolledBack(peer):
                console.print(
                    f"{peer} came back as a new process; going on from the newest checkpoint that "
                    "both hold",
                    markup=False,
                )
            case Finished(step):
                self._progress.update(self._bar, completed=step)

    def _at(self, done: int, facts: str) -> None:
        of = "" if self._total is None else f"/{self._total}"
        self._progress.update(self._bar, completed=done, facts=facts)
        now_s = time.monotonic()
        if not console.is_terminal and now_s - self._told_s > QUIET_S:
            self._told_s = now_s
            console.print(f"{self._what} {done}{of} {facts}", markup=False)

    def _facts(self, facts: str) -> None:
        self._progress.update(self._bar, facts=facts)


# Seconds between two lines where there is no terminal: a log that lives, and stays short.
QUIET_S = 10.0
