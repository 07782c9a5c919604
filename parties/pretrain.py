"""Submitting a pre-training job to the coordinator on this machine, and seeing it through to its end.

A run of Flower's may die with its process or its SuperLink; the job goes on from its checkpoint in the
next run. Whether it is finished is said by a file in its folder, not by Flower.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from splitlearn.coordination.control import Control, RunState

__all__ = ["pretrain"]


def pretrain(
    job: Annotated[Path, typer.Argument(help="The job's file.")] = Path("pretrain.toml"),
    attempts: Annotated[
        int, typer.Option(min=1, help="How many runs may end before the job is finished.")
    ] = 10,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a coordinator that is away.")
    ] = 120.0,
    nproc: Annotated[
        int,
        typer.Option(min=0, max=1024, help="Processes that share a batch; else run.processes."),
    ] = 0,
) -> None:
    """Pre-train with the generators that the coordinator on this machine calls.

    README.md explains the keys of pretrain.toml.

    \b
    Example:
        splitlearn pretrain pretrain.toml

    Ctrl-C stops the run and leaves what is needed to go on: run the same command again. If the
    training process or the coordinator dies, it is started again from its newest checkpoint.
    """
    from parties.pretrain_view import EVENTS, View
    from splitlearn.coordination.endings import FINISHED
    from splitlearn.manifest import load_pretrain

    settings = load_pretrain(job)
    folder = settings.run.folder
    if (folder / FINISHED).exists():
        _say(f"the job in {folder} is finished; choose another run.folder for a new one")
        return
    with View(folder / EVENTS):
        _Pursuit(
            job=job,
            folder=folder,
            coordinator=str(settings.coordinator.address),
            attempts=attempts,
            patience_s=patience,
            processes=nproc,
        ).see_through()
    _say(f"finished; results lie in {folder}")


# In the job's folder: what Flower says of its runs.
FLOWER = "flower.txt"
# Seconds between two looks at a run.
_LOOK_S = 0.5
# A conductor that lets go of the job ends its run within a second; one that was killed never does.
_DEAD_S = 5.0
# A ServerApp's process imports torch and reads data before it conducts.
_START_S = 300.0
# Flower gives a stopped process five seconds for its last words.
_PARTING_S = 30.0
# The shell's own code for a process ended by Ctrl-C.
_INTERRUPTED = 130


@dataclass
class _Pursuit:
    """One job on its way to its end, over as many runs as it takes."""

    job: Path
    folder: Path
    coordinator: str
    attempts: int
    patience_s: float
    processes: int = 0
    _run: int | None = field(default=None, init=False)

    def see_through(self) -> None:
        """Raises the error that ended the job, or ChannelError when patience or attempts are out."""
        from splitlearn.errors import ChannelError

        ended = ""
        for attempt in range(self.attempts):
            if attempt:
                _say(f"{ended}; going on in a new run, {attempt + 1} of at most {self.attempts}")
            ended = self._attempt()
            if not ended:
                return
        raise ChannelError(
            f"{self.attempts} runs ended before the job was finished, the last because {ended}; see "
            f"{self.folder / FLOWER}, then run splitlearn pretrain {self.job} again to go on"
        )

    def _attempt(self) -> str:
        """One run; why it ended, or an empty text where the job is finished."""
        from splitlearn.coordination.control import Control
        from splitlearn.errors import ChannelError

        self._let_go()
        with Control(self.coordinator) as control:
            self._run = self._submit(control)
            follower = control.follow(self._run, self._note)
            try:
                state = self._watch(control, self._run)
            except KeyboardInterrupt:
                self._interrupt(control)
                raise typer.Exit(_INTERRUPTED) from None
            except ChannelError:
                return "" if self._finished else "the coordinator went away"
            finally:
                follower.close()
        return self._judge(state)

    def _note(self, line: str) -> None:
        """Flower's own lines, traces among them, are for whoever looks for them."""
        from splitlearn.identity import files

        place = files.make_folder(self.folder) / FLOWER
        files.append(place, f"{line}\n".encode())

    def _submit(self, control: "Control") -> int:
        """Wait for the coordinator where it is away, for as long as patience lasts."""
        from splitlearn.errors import ChannelError

        ends = time.monotonic() + self.patience_s
        told = False
        while True:
            try:
                run = control.start(self.job, processes=self.processes)
            except ChannelError as error:
                if time.monotonic() >= ends:
                    raise
                if not told:
                    _say(f"waiting: {error}")
                    told = True
                time.sleep(_LOOK_S)
            else:
                _say(f"run {run} is submitted")
                return run

    def _watch(self, control: "Control", run: int) -> "RunState | None":
        """How the run ended; None where its process died and Flower has not noticed."""
        from splitlearn.coordination.claims import held
        from splitlearn.coordination.endings import CONDUCTING
        from splitlearn.errors import ChannelError

        began = time.monotonic()
        seen: float | None = None
        while True:
            state = control.state(run)
            if state.over:
                return state
            now = time.monotonic()
            if held(self.folder / CONDUCTING):
                seen = now
            elif seen is not None and now - seen > _DEAD_S:
                control.stop(run)
                return None
            elif seen is None and now - began > _START_S:
                control.stop(run)
                raise ChannelError(
                    f"run {run} was not taken up within {_START_S:.0f} s; the coordinator's lines say why"
                )
            time.sleep(_LOOK_S)

    def _judge(self, state: "RunState | None") -> str:
        from splitlearn.coordination.endings import read_failure
        from splitlearn.errors import ChannelError

        if self._finished:
            return ""
        if state is None:
            return "its process died"
        error = read_failure(state.details)
        if error is not None and not isinstance(error, ChannelError):
            raise error
        if error is not None:
            return str(error)
        if state.ending == "stopped":
            raise ChannelError(
                f"the run was stopped by somebody; run splitlearn pretrain {self.job} again to go on"
            )
        return state.details or f"it was {state.ending}"

    def _interrupt(self, control: "Control") -> None:
        from splitlearn.errors import ChannelError

        _say("interrupted; the run is being stopped")
        try:
            if self._run is not None:
                control.stop(self._run)
            self._let_go()
        except ChannelError as error:
            _say(str(error))
        _say(f"run splitlearn pretrain {self.job} again to go on")

    def _let_go(self) -> None:
        """Wait until no process conducts the job. Raises ChannelError."""
        from splitlearn.coordination.claims import held
        from splitlearn.coordination.endings import CONDUCTING
        from splitlearn.errors import ChannelError

        ends = time.monotonic() + _PARTING_S
        while held(self.folder / CONDUCTING):
            if time.monotonic() > ends:
                raise ChannelError(
                    f"a process still conducts the job in {self.folder}; end it, or wait for it"
                )
            time.sleep(_LOOK_S)

    @property
    def _finished(self) -> bool:
        from splitlearn.coordination.endings import FINISHED

        return (self.folder / FINISHED).exists()


def _say(line: str) -> None:
    typer.echo(line, err=True)
