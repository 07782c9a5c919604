"""What a person at a terminal, and a log file in a CI, get to see."""

import io

import pytest
from rich.console import Console

from parties import console as shown
from parties.console import INTERRUPTED, Display, interruptible, size
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
)

PEER = "compute.gpuhost.fed.example"
RUN: list[Event] = [
    SentWeights(0, 2),
    SentWeights(1, 2),
    Began(0, PEER),
    StepDone(0, 0.75, 0.1, 1_000, 500),
    Saved(1),
    RolledBack(PEER),
    Began(1, PEER),
    StepDone(1, 0.5, 0.1, 1_000, 500),
    Answered(1),
    Evaluated(1),
    Finished(2),
]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Where the console writes: a file, no terminal."""
    return use(monkeypatch, terminal=False)


def use(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=100, color_system=None, soft_wrap=not terminal
    )
    monkeypatch.setattr(shown, "console", console)
    return out


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (12_345_678, "12.3 MB"),
        (5_678_900_000, "5.68 GB"),
        (2_500_000_000_000, "2500.00 GB"),
        (-1_500, "-1.5 kB"),
    ],
)
def test_bytes_are_written_as_a_person_reads_them(count: int, text: str) -> None:
    assert size(count) == text


def test_ctrl_c_becomes_one_line_and_the_shells_code(screen: io.StringIO) -> None:
    with pytest.raises(SystemExit) as end, interruptible("run [it] again"):
        raise KeyboardInterrupt
    assert end.value.code == INTERRUPTED == 130
    assert screen.getvalue() == "interrupted; run [it] again\n"


def test_nothing_is_said_where_nobody_interrupts(screen: io.StringIO) -> None:
    with pytest.raises(ValueError, match="other"), interruptible("no"):
        raise ValueError("other")
    with interruptible("no"):
        pass
    assert screen.getvalue() == ""


def test_a_file_gets_the_lines_that_matter_and_no_bar(screen: io.StringIO) -> None:
    with Display("training", total=2) as display:
        for event in RUN:
            display(event)
    assert screen.getvalue().splitlines() == [
        f"working with {PEER}, from step 0",
        f"{PEER} came back as a new process; going on from the newest checkpoint that both hold",
        f"working with {PEER}, from step 1",
    ]


def test_a_file_hears_now_and_then_that_it_goes_on(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "QUIET_S", 0.0)
    with Display("training", total=2) as display:
        display(StepDone(0, 0.75, 0.1, 1_000, 500))
        display(StepDone(1, 0.5, 0.1, 1_000, 500))
        display.begin("evaluating", total=3)
        display(Evaluated(1))
    with Display("serving", total=None) as display:
        display(Answered(4))
    assert [line.rstrip() for line in screen.getvalue().splitlines()] == [
        "training 1/2 loss 0.7500, 1.5 kB",
        "training 2/2 loss 0.5000, 3.0 kB",
        "evaluating 1/3",
        "serving 5",
    ]


def test_a_terminal_gets_a_bar_with_loss_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    out = use(monkeypatch, terminal=True)
    with Display("training", total=2) as display:
        for event in RUN[:-3]:
            display(event)
    text = out.getvalue()
    for part in ("training", "2/2", "0:00:0", "loss 0.5000", "3.0 kB"):
        assert part in text


def test_a_plain_loop_that_moves_no_bytes_shows_none(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "QUIET_S", 0.0)
    with Display("training", total=1) as display:
        display(StepDone(0, 0.5, 0.1, 0, 0))
    assert screen.getvalue().rstrip() == "training 1/1 loss 0.5000"
