"""A discrete-event simulation of training steps: who works when, what is on which wire when.

Pure. It runs the schedule that the engine runs: the trusted party goes through its actions in order
(first and last stage are one worker, which also relays), takes messages in order of arrival and keeps
those that come early; each compute party answers in order of arrival. What carries their messages is
`world`'s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from splitlearn.pipeline.chain import COMPUTE, TRUSTED, Chain, Run
from splitlearn.pipeline.schedule import ORDERS, Op
from splitlearn.pipeline.stretch import Turn, interleaved, until_drained
from splitlearn.pipeline.world import Message, Process, Put, Take, Work, World

__all__ = ["simulate"]

_FORWARD, _BACKWARD, _SETTLE, _NORM = "forward", "backward", "settle", "norm"
_AWAITED: Mapping[Op, str] = {
    Op.RELAY: _FORWARD,
    Op.TOP: _FORWARD,
    Op.RELAY_BACKWARD: _BACKWARD,
    Op.BOTTOM_BACKWARD: _BACKWARD,
}
_LEAVING: Mapping[Op, str] = {
    Op.BOTTOM: _FORWARD,
    Op.RELAY: _FORWARD,
    Op.TOP: _BACKWARD,
    Op.RELAY_BACKWARD: _BACKWARD,
}
# Messages without a tensor, as a settlement's: a few hundred bytes each.
_SMALL_BYTES = 700


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
    """Who sends what to whom. Leg i of the way lies before stage i; the last one behind all of them."""

    def __init__(self, chain: Chain, names: list[str]) -> None:
        self._relayed = chain.relayed
        self._stops = [TRUSTED, *names, TRUSTED]
        self._sizes: dict[str, list[int | None]] = {
            _FORWARD: [chain.activation, *chain.hops, chain.output],
            # A backward without an input gradient ends at the first compute party.
            _BACKWARD: [chain.input_gradient, *chain.back_hops, chain.gradient],
        }
        if chain.gradient is None:
            self._sizes[_BACKWARD] = [None for _ in self._stops[1:]]

    def put(
        self, way: str, leg: int, *, micro_batch: int, step: int, by_trusted: bool = False
    ) -> Put | None:
        """The message of a leg; None if the job has none. by_trusted: what it sends, or sends on."""
        size = self._sizes[way][leg]
        if size is None:
            return None
        before, after = self._stops[leg], self._stops[leg + 1]
        source, dest = (before, after) if way == _FORWARD else (after, before)
        if by_trusted:
            source = TRUSTED
        elif self._relayed:
            dest = TRUSTED
        return Put(source, dest, Message(way, micro_batch, step, size, leg))

    def tell(self, kind: str, party: int, *, step: int) -> Put:
        """What has no tensor, from the trusted party: a settlement's first message, or a norm's factor."""
        return Put(TRUSTED, self._stops[party + 1], Message(kind, 0, step, _SMALL_BYTES, party))


def _trusted(
    chain: Chain, route: _Route, *, steps: int, ends: list[float], world: World
) -> Process:
    early: set[tuple[str, int, int, int]] = set()

    def awaited(wanted: tuple[str, int, int, int]) -> Process:
        while wanted not in early:
            came = yield Take(TRUSTED)
            assert came is not None
            early.add((came.kind, came.step, came.micro_batch, came.leg))
        early.remove(wanted)

    everybody = range(len(chain.stages)) if chain.clips else ()
    for turn, settling in _turns(chain, steps=steps):
        step = turn.step
        if turn.action is None:
            for party in everybody:
                yield from awaited((_NORM, step, 0, party))
            for party in everybody:
                yield route.tell(_NORM, party, step=step)
            yield Work(TRUSTED, "update", (0, step), chain.update_s)
            for party in settling:
                yield route.tell(_SETTLE, party, step=step)
                yield Take(TRUSTED)
            ends.append(world.now_s)
            continue
        op, i = turn.action.op, turn.action.micro_batch
        leg = len(chain.stages) if op is Op.TOP else turn.action.party
        if (way := _AWAITED.get(op)) is not None:
            yield from awaited((way, step, i, leg))
        yield Work(TRUSTED, op.value, (i, step), _seconds(chain)[op])
        if (way := _LEAVING.get(op)) is not None:
            put = route.put(way, leg, micro_batch=i, step=step, by_trusted=True)
            if put is not None:
                yield put


def _turns(chain: Chain, *, steps: int) -> Iterator[tuple[Turn, tuple[int, ...]]]:
    """All that the trusted party does, and with whom it settles after it."""
    backward, m = chain.input_gradient is not None, chain.micro_batches
    if not chain.staleness:
        parties = range(chain.parties)
        unsettled = [0 for _ in parties]
        for step in range(steps):
            order = ORDERS[chain.order](
                m,
                in_flight=chain.in_flight,
                backward=backward,
                parties=chain.parties,
                gradients=chain.gradient is not None,
            )
            for action in order:
                yield Turn(step, action), ()
            unsettled = [unsettled[party] + chain.messages(party) for party in parties]
            due = tuple(p for p in parties if 0 < chain.settle_messages <= unsettled[p])
            unsettled = [0 if party in due else unsettled[party] for party in parties]
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
            settles = drained and chain.settle_messages > 0
            yield replace(turn, step=first + turn.step), (0,) if settles else ()
        first += len(stretch)


def _stretch(chain: Chain, steps: int) -> list[int]:
    """The micro-batches of each step of the next stretch, with so many steps to go."""
    counts = until_drained(
        [chain.micro_batches] * steps,
        first=0,
        every=steps + 1,
        kinds=chain.messages() // chain.micro_batches,
        most=chain.settle_messages or steps * chain.messages(),
    )
    return list(counts)


def _seconds(chain: Chain) -> dict[Op, float]:
    return {
        Op.BOTTOM: chain.bottom_s,
        Op.RELAY: chain.relay_s,
        Op.TOP: chain.top_s,
        Op.RELAY_BACKWARD: chain.relay_backward_s,
        Op.BOTTOM_BACKWARD: chain.bottom_backward_s,
    }


def _compute(chain: Chain, route: _Route, *, place: int, name: str) -> Process:
    costs = chain.stages[place]
    while True:
        message = yield Take(name)
        assert message is not None
        where = (message.micro_batch, message.step)
        if message.kind == _SETTLE:
            yield Put(name, TRUSTED, message)
            continue
        forward = message.kind == _FORWARD
        seconds = costs.forward_s if forward else costs.backward_s
        yield Work(name, message.kind, where, seconds)
        put = route.put(message.kind, place + forward, micro_batch=where[0], step=where[1])
        if put is not None:
            yield put
        if not forward and message.micro_batch == chain.micro_batches - 1:
            if chain.clips:
                yield Put(name, TRUSTED, Message(_NORM, 0, where[1], _SMALL_BYTES, place))
                factor = yield Take(name)
                assert factor is not None
                assert factor.kind == _NORM
            yield Work(name, "update", where, costs.update_s)
