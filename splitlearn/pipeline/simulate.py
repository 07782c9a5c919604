"""A discrete-event simulation of training steps: who works when, what is on which wire when.

Pure. It runs the schedule that the engine runs: the trusted party goes through its actions in order
(first and last stage are one worker), takes messages in order of arrival and keeps those that come
early; each compute party answers in order of arrival. What carries their messages is `world`'s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from splitlearn.pipeline.chain import COMPUTE, RELAY, TRUSTED, Chain, Run
from splitlearn.pipeline.schedule import ORDERS, Op
from splitlearn.pipeline.stretch import Turn, interleaved, until_drained
from splitlearn.pipeline.world import Message, Process, Put, Take, Work, World

__all__ = ["simulate"]

_FORWARD, _BACKWARD, _SETTLE = "forward", "backward", "settle"
_AWAITED: Mapping[Op, str] = {Op.TOP: _FORWARD, Op.BOTTOM_BACKWARD: _BACKWARD}
# A settlement's messages: a few hundred bytes each.
_SETTLE_BYTES = 700


def simulate(chain: Chain, *, steps: int = 3) -> Run:
    """Run `steps` training steps.

    >>> from splitlearn.pipeline import Chain, StageCosts
    >>> chain = Chain(
    ...     micro_batches=2, in_flight=2, bottom_s=1, top_s=1, stages=(StageCosts(1),),
    ...     activation=0, output=0,
    ... )
    >>> simulate(chain, steps=1).ends_s
    (4.0,)
    """
    world = World(chain)
    names = (
        [COMPUTE]
        if len(chain.stages) == 1
        else [f"{COMPUTE} {i + 1}" for i in range(len(chain.stages))]
    )
    route = _Route(chain, names)
    for place, name in enumerate(names):
        world.begin(_compute(chain, route, place=place, name=name))
    if chain.relayed:
        world.begin(_relay(chain))
    ends: list[float] = []
    world.begin(_trusted(chain, route, steps=steps, ends=ends, world=world))
    world.run()
    if len(ends) < steps:
        raise ValueError(
            f"the parties wait for each other after {len(ends)} steps: {chain.in_flight} micro-batches "
            f"in flight are too many for a window of {chain.window}"
        )
    left_out = len(_stretch(chain, steps)) if chain.staleness else 1
    return Run(spans=tuple(world.spans), ends_s=tuple(ends), left_out=left_out)


class _Route:
    """Who sends what to whom."""

    def __init__(self, chain: Chain, names: list[str]) -> None:
        self._chain = chain
        stops = [TRUSTED, *names, TRUSTED]
        sizes = [chain.activation, *chain.hops, chain.output]
        # A backward without an input gradient ends at the first compute party.
        back = [chain.input_gradient, *chain.back_hops, chain.gradient]
        self._next = {
            (_FORWARD, i): (a, b, size)
            for i, ((a, b), size) in enumerate(zip(pairwise(stops), sizes, strict=True))
        } | {
            (_BACKWARD, i): (b, a, size)
            for i, ((a, b), size) in enumerate(zip(pairwise(stops), back, strict=True))
        }

    def put(self, way: str, leg: int, *, micro_batch: int, step: int) -> Put | None:
        """The message of leg `leg`, counted from the bottom; None if the job has none."""
        source, dest, size = self._next[way, leg]
        if size is None:
            return None
        inner = TRUSTED not in {source, dest}
        first = RELAY if inner and self._chain.relayed else dest
        return Put(source, first, Message(way, micro_batch, step, size, dest))


def _trusted(
    chain: Chain, route: _Route, *, steps: int, ends: list[float], world: World
) -> Process:
    last = len(chain.stages)
    early: dict[tuple[str, int, int], Message] = {}
    for turn, settle in _turns(chain, steps=steps):
        step = turn.step
        if turn.action is None:
            yield Work(TRUSTED, "update", (0, step), chain.update_s)
            if settle:
                first = route.put(_FORWARD, 0, micro_batch=0, step=step)
                assert first is not None
                ask = Message(_SETTLE, 0, step, _SETTLE_BYTES, first.dest)
                yield Put(TRUSTED, first.dest, ask)
                yield Take(TRUSTED)
            ends.append(world.now_s)
            continue
        op, i = turn.action.op, turn.action.micro_batch
        wanted = _AWAITED.get(op)
        while wanted is not None and (wanted, step, i) not in early:
            came = yield Take(TRUSTED)
            assert came is not None
            early[came.kind, came.step, came.micro_batch] = came
        if wanted is not None:
            del early[wanted, step, i]
        yield Work(TRUSTED, op.value, (i, step), _seconds(chain)[op])
        leaving = {Op.BOTTOM: (_FORWARD, 0), Op.TOP: (_BACKWARD, last)}.get(op)
        if leaving is not None:
            put = route.put(*leaving, micro_batch=i, step=step)
            if put is not None:
                yield put


def _turns(chain: Chain, *, steps: int) -> Iterator[tuple[Turn, bool]]:
    """All that the trusted party does, and whether it settles after it."""
    backward, m = chain.input_gradient is not None, chain.micro_batches
    if not chain.staleness:
        unsettled = 0
        for step in range(steps):
            for action in ORDERS[chain.order](m, in_flight=chain.in_flight, backward=backward):
                yield Turn(step, action), False
            unsettled += chain.messages
            due = 0 < chain.settle_messages <= unsettled
            unsettled = 0 if due else unsettled
            yield Turn(step, None), due
        return
    first = 0
    while first < steps:
        stretch = _stretch(chain, steps - first)
        turns = interleaved(
            stretch,
            staleness=chain.staleness,
            in_flight=chain.in_flight,
            backward=backward,
            order=chain.order,
        )
        for turn in turns:
            drained = turn == Turn(len(stretch) - 1, None)
            yield replace(turn, step=first + turn.step), drained and chain.settle_messages > 0
        first += len(stretch)


def _stretch(chain: Chain, steps: int) -> list[int]:
    """The micro-batches of each step of the next stretch, with so many steps to go."""
    counts = until_drained(
        [chain.micro_batches] * steps,
        first=0,
        every=steps + 1,
        kinds=chain.messages // chain.micro_batches,
        most=chain.settle_messages or steps * chain.messages,
    )
    return list(counts)


def _seconds(chain: Chain) -> dict[Op, float]:
    return {
        Op.BOTTOM: chain.bottom_s,
        Op.TOP: chain.top_s,
        Op.BOTTOM_BACKWARD: chain.bottom_backward_s,
    }


def _compute(chain: Chain, route: _Route, *, place: int, name: str) -> Process:
    costs = chain.stages[place]
    while True:
        message = yield Take(name)
        assert message is not None
        where = (message.micro_batch, message.step)
        if message.kind == _SETTLE:
            yield Put(name, TRUSTED, Message(_SETTLE, *where, _SETTLE_BYTES, TRUSTED))
            continue
        forward = message.kind == _FORWARD
        seconds = costs.forward_s if forward else costs.backward_s
        yield Work(name, message.kind, where, seconds)
        put = route.put(message.kind, place + forward, micro_batch=where[0], step=where[1])
        if put is not None:
            yield put
        if not forward and message.micro_batch == chain.micro_batches - 1:
            yield Work(name, "update", where, chain.stage_update_s)


def _relay(chain: Chain) -> Process:
    while True:
        message = yield Take(RELAY)
        assert message is not None
        yield Work(RELAY, message.kind, (message.micro_batch, message.step), chain.relay_s)
        yield Put(RELAY, message.to, message)
