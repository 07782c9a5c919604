"""How a trusted party and its compute parties agree on the step that all go on from."""

from collections.abc import Iterable, Iterator, Sequence

from splitlearn.engine.events import Observe, SentWeights
from splitlearn.engine.line import Line
from splitlearn.errors import SessionError
from splitlearn.wire.messages import Accept

__all__ = ["agree", "in_turns"]


def agree(lines: Sequence[Line], mine: Sequence[int], *, trains: bool, observe: Observe) -> int:
    """Offer the job, send the weights that are asked for, and resume all at the newest step they hold.

    mine: steps of our own checkpoints. trains: such a run may always begin anew at 0. SessionError where
    no step is held by all.
    """
    for line in lines:
        line.begin(mine)
    accepts = [line.accepted() for line in lines]
    step = _common(lines, mine, accepts, trains=trains)
    in_turns([_sending(line, a, observe) for line, a in zip(lines, accepts, strict=True)])
    for line in lines:
        line.resume(step)
    return step


def in_turns(works: Iterable[Iterator[None]]) -> None:
    """A piece of each in turn to the end: no party waits while another gets or sends all its weights."""
    waiting = list(works)
    while waiting:
        waiting = [work for work in waiting if next(work, _DONE) is not _DONE]


_DONE = object()


def _common(
    lines: Sequence[Line], mine: Sequence[int], accepts: Sequence[Accept], *, trains: bool
) -> int:
    always = {0} & set(mine) if trains else set[int]()
    common = set(mine)
    for line, accept in zip(lines, accepts, strict=True):
        shared = set(mine) & set(accept.held) | always
        if not shared:
            raise SessionError(
                f"{line.name} holds no checkpoint of this run that we hold too (ours are "
                f"{tuple(mine)}, theirs {accept.held}); it lost them, or the run is another one: "
                "begin anew with another run.folder"
            )
        common &= shared
    if not common:
        held = ", ".join(
            f"{line.name} {accept.held}" for line, accept in zip(lines, accepts, strict=True)
        )
        raise SessionError(
            f"no checkpoint of this run is held by all (ours are {tuple(mine)}; {held}); begin "
            "anew with another run.folder"
        )
    return max(common)


def _sending(line: Line, accept: Accept, observe: Observe) -> Iterator[None]:
    for index, count in line.send_weights(accept):
        observe(SentWeights(index, count))
        yield
