"""How a trusted party and its compute parties agree on the step that all go on from."""

import secrets
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from splitlearn.engine.events import Observe, SentWeights
from splitlearn.engine.trusted.line import Line
from splitlearn.errors import SessionError
from splitlearn.wire.messages import Accept, Hops, Neighbour

__all__ = ["agree", "in_turns"]


def agree(lines: Sequence[Line], mine: Sequence[int], *, trains: bool, observe: Observe) -> int:
    """Offer the job, send the weights that are asked for, and resume all at the newest step they hold.

    mine: steps of our own checkpoints. trains: such a run may always begin anew at 0. SessionError where
    no step is held by all.
    """
    for line, hops in zip(lines, _bridged(lines), strict=True):
        line.begin(mine, hops=hops)
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


def _bridged(lines: Sequence[Line]) -> Iterator[Hops | None]:
    """The neighbours of each, where it has any, over bridges that were never there before.

    What was said over an older one is known by that, and can do no harm.
    """
    fresh: Neighbour | None = None
    for number, line in enumerate(lines):
        hops = line.hops
        if hops is None:
            yield None
            continue
        before = None
        if hops.before is not None and fresh is not None:
            before = msgspec.structs.replace(hops.before, bridge=fresh.bridge)
        fresh = hops.after
        if fresh is not None:
            assert number < len(lines) - 1, "the last party of a chain has nobody after it"
            fresh = msgspec.structs.replace(fresh, bridge=secrets.token_hex(16))
        yield Hops(before, fresh)


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
