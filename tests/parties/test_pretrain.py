"""Seeing a job through: what is done after each way in which a run can end. Flower is a table here."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parties import pretrain
from splitlearn.coordination import control
from splitlearn.coordination.claims import claimed
from splitlearn.coordination.control import RunState
from splitlearn.coordination.endings import failure
from splitlearn.errors import ChannelError, ManifestError, PeerError
from tests.tongues import tongues

app = typer.Typer()
app.command()(pretrain.pretrain)

RUNNING = RunState(status="running", ending="", details="")
STOPPED = RunState(status="finished", ending="stopped", details="")
COMPLETED = RunState(status="finished", ending="completed", details="")


def failed(details: str) -> RunState:
    return RunState(
        status="finished", ending="failed", details=f"ServerApp failed with exception: {details}"
    )


@dataclass
class Flower:
    """What the SuperLink answers, run by run; each state is the outcome of a function."""

    runs: list[list[Callable[[], RunState]]]
    started: int = 0
    processes: int = 0
    stopped: list[int] = field(default_factory=list)

    def __call__(self, _address: str) -> "Flower":
        return self

    def __enter__(self) -> "Flower":
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, _job: Path, *, processes: int) -> int:
        assert processes == self.processes
        self.started += 1
        return self.started

    def state(self, run: int) -> RunState:
        left = self.runs[run - 1]
        return (left.pop(0) if len(left) > 1 else left[0])()

    def stop(self, run: int) -> None:
        self.stopped.append(run)

    def follow(self, _run: int, say: Callable[[str], None]) -> "Flower":
        say("a line of the run")
        return self

    def close(self) -> None: ...


@dataclass
class Bench:
    folder: Path
    flower: Flower

    def finish(self) -> RunState:
        (self.folder / "hub" / "run" / "finished.json").touch()
        return COMPLETED

    def run(self, *options: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(self.folder / "pretrain.toml"), *options])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    tongues(tmp_path, {"ana": "aa"}).run.mkdir()
    monkeypatch.setattr(pretrain, "_LOOK_S", 0.005)
    monkeypatch.setattr(pretrain, "_DEAD_S", 0.05)
    monkeypatch.setattr(pretrain, "_PARTING_S", 0.1)
    bench = Bench(tmp_path, Flower([]))
    monkeypatch.setattr(control, "Control", bench.flower)
    return bench


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_that_finishes_the_job_ends_the_command(bench: Bench, processes: int) -> None:
    bench.flower.runs, bench.flower.processes = [[lambda: RUNNING, bench.finish]], processes
    code, said = bench.run(*(("--nproc", str(processes)) if processes else ()))
    assert code == 0
    assert "run 1 is submitted" in said
    # Flower's own lines are kept for whoever looks for them, and trouble nobody else.
    assert "a line of the run" not in said
    assert (bench.folder / "hub" / "run" / pretrain.FLOWER).read_text() == "a line of the run\n"
    assert said.endswith(f"finished; results lie in {bench.folder / 'hub' / 'run'}\n")
    code, said = bench.run()
    assert (code, bench.flower.started) == (0, 1)
    assert "is finished; choose another run.folder" in said


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        (COMPLETED, "it was completed"),
        (failed("[exit 5] a line is gone"), "a line is gone"),
        (failed("KeyError"), "ServerApp failed with exception: KeyError"),
        (RunState("finished", "failed", "No heartbeat"), "No heartbeat"),
    ],
)
def test_a_run_that_ended_before_its_job_is_followed_by_another(
    bench: Bench, ending: RunState, why: str
) -> None:
    bench.flower.runs = [[lambda: ending], [bench.finish]]
    code, said = bench.run()
    assert (code, bench.flower.started) == (0, 2)
    assert f"{why}; going on in a new run, 2 of at most 10" in said


def test_an_error_that_another_run_would_meet_again_ends_the_command(bench: Bench) -> None:
    for error in (ManifestError("mend the job"), PeerError("not ours")):
        bench.flower.runs = [[lambda error=error: failed(str(failure(error)))]]  # type: ignore[misc]
        bench.flower.started = 0
        with pytest.raises(type(error), match=str(error)):
            bench.run()


def test_attempts_are_bounded_and_the_last_reason_is_told(bench: Bench) -> None:
    bench.flower.runs = [[lambda: failed("odd")]] * 3
    with pytest.raises(ChannelError, match=r"3 runs ended before .* odd"):
        bench.run("--attempts", "3")
    assert bench.flower.started == 3


def test_somebody_elses_stop_is_not_answered_with_a_new_run(bench: Bench) -> None:
    bench.flower.runs = [[lambda: STOPPED]]
    with pytest.raises(ChannelError, match="stopped by somebody"):
        bench.run()


def test_a_process_that_dies_is_noticed_without_flower(bench: Bench) -> None:
    """The first run's conductor is seen, and then gone, while Flower still calls it running."""
    hold = holding(bench.folder / "hub" / "run" / ".conducting")
    looks = iter(range(100))

    def dying() -> RunState:
        if next(looks) in {1, 4}:
            next(hold, None)
        return RUNNING

    bench.flower.runs = [[dying], [bench.finish]]
    code, said = bench.run()
    assert (code, bench.flower.stopped) == (0, [1])
    assert "its process died; going on in a new run" in said


def holding(path: Path) -> Iterator[None]:
    with claimed(path, otherwise=""):
        yield


def test_no_run_is_begun_while_a_process_conducts_the_job(bench: Bench) -> None:
    with (
        claimed(bench.folder / "hub" / "run" / ".conducting", otherwise=""),
        pytest.raises(ChannelError, match="a process still conducts the job"),
    ):
        bench.run()
    assert bench.flower.started == 0


def test_a_run_that_nobody_takes_up_is_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrain, "_START_S", 0.02)
    bench.flower.runs = [[lambda: RUNNING]] * 2
    code, said = 0, ""
    with pytest.raises(ChannelError, match="2 runs ended"):
        code, said = bench.run("--attempts", "2")
    assert (code, said, bench.flower.stopped) == (0, "", [1, 2])


def test_ctrl_c_stops_the_run_and_says_how_to_go_on(bench: Bench) -> None:
    def interrupt() -> RunState:
        raise KeyboardInterrupt

    bench.flower.runs = [[interrupt]]
    code, said = bench.run()
    assert (code, bench.flower.stopped) == (130, [1])
    assert "interrupted; the run is being stopped" in said
    assert "again to go on" in said


def test_ctrl_c_ends_the_command_even_where_the_coordinator_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> RunState:
        raise KeyboardInterrupt

    def away(_run: int) -> None:
        raise ChannelError("nobody answers")

    bench.flower.runs = [[interrupt]]
    monkeypatch.setattr(bench.flower, "stop", away)
    code, said = bench.run()
    assert code == 130
    assert "nobody answers" in said


def test_a_coordinator_that_is_away_is_waited_for_as_long_as_patience_lasts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = threading.Semaphore(3)
    start = bench.flower.start

    def starting(job: Path, *, processes: int) -> int:
        if tries.acquire(blocking=False):
            raise ChannelError("no SuperLink answers")
        return start(job, processes=processes)

    monkeypatch.setattr(bench.flower, "start", starting)
    bench.flower.runs = [[bench.finish]]
    code, said = bench.run()
    assert (code, said.count("waiting: no SuperLink answers")) == (0, 1)
    (bench.folder / "hub" / "run" / "finished.json").unlink()
    tries.release(1000)
    with pytest.raises(ChannelError, match="no SuperLink answers"):
        bench.run("--patience", "0")


def test_a_coordinator_that_goes_away_in_the_middle_is_no_end(bench: Bench) -> None:
    def away() -> RunState:
        raise ChannelError("gone")

    bench.flower.runs = [[lambda: RUNNING, away], [bench.finish]]
    code, said = bench.run()
    assert (code, bench.flower.started) == (0, 2)
    assert "the coordinator went away; going on" in said
