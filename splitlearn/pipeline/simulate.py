"""A discrete-event simulation of training steps: who works when, what is on which wire when.

Pure. It runs the schedule that the engine runs: the trusted party goes through its actions in order
(first and last stage are one worker), takes messages in order of arrival and keeps those that come
early; each compute party answers in order of arrival; sends do not block but for the channel's credit;
a wire carries one message after the other, then each travels for the delay.
"""

import heapq
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise

from splitlearn.pipeline.schedule import ORDERS, Op

__all__ = ["Chain", "Pipe", "Run", "Span", "StageCosts", "simulate"]


@dataclass(frozen=True)
class Pipe:
    """One direction of a link. bits_per_s: None for no limit."""

    bits_per_s: float | None = None
    delay_s: float = 0.0

    def sending_s(self, size: int) -> float:
        """How long `size` bytes keep the wire busy."""
        return 8 * size / self.bits_per_s if self.bits_per_s else 0.0


@dataclass(frozen=True)
class StageCosts:
    """Seconds of one micro-batch in one compute party's stage, its coders and its log included."""

    forward_s: float
    backward_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A step in figures, alike for all micro-batches.

    bottom_s, top_s, bottom_backward_s: seconds of the trusted party's actions, with decoding what they
    take and encoding what they send; top_s is forward, loss and backward. stages: the compute parties.
    activation, output, gradient, input_gradient: bytes of a message; without gradient no backward
    leaves, without input_gradient none comes back. hops, back_hops: bytes from each compute party to
    the next and back. up, down: the trusted party's link; between: from one compute party to another.
    relayed: hops go by way of the trusted party, which takes relay_s for each. update_s, stage_update_s:
    optimiser steps. window: frames that may be untaken in one direction. settle_messages: heads and
    receipts are swapped after so many messages of both (0: never).
    """

    micro_batches: int
    in_flight: int
    order: str = "fill-drain"
    bottom_s: float
    top_s: float
    bottom_backward_s: float = 0.0
    stages: tuple[StageCosts, ...]
    activation: int
    output: int
    gradient: int | None = None
    input_gradient: int | None = None
    hops: tuple[int, ...] = ()
    back_hops: tuple[int, ...] = ()
    up: Pipe = Pipe()
    down: Pipe = Pipe()
    between: Pipe = Pipe()
    relayed: bool = False
    relay_s: float = 0.0
    update_s: float = 0.0
    stage_update_s: float = 0.0
    window: int = 1 << 30
    settle_messages: int = 0

    def __post_init__(self) -> None:
        between = len(self.stages) - 1
        if not self.stages or len(self.hops) != between:
            raise ValueError(
                f"{len(self.stages)} stages and {len(self.hops)} hops; one less is right"
            )
        if self.gradient is not None and len(self.back_hops) != between:
            raise ValueError(f"{len(self.back_hops)} hops back; expected {between}")
        if self.gradient is None and self.input_gradient is not None:
            raise ValueError("an input gradient comes back only where a gradient leaves")

    @property
    def messages(self) -> int:
        """Frames of a step between the trusted party and its first and last compute party."""
        kinds = 2 + (self.gradient is not None) + (self.input_gradient is not None)
        return kinds * self.micro_batches


@dataclass(frozen=True)
class Span:
    """Something that took time. lane: a worker or a wire, such as "compute" or "trusted > compute"."""

    lane: str
    what: str
    micro_batch: int
    step: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Run:
    """What a simulation found. ends_s: when the trusted party was done with each step."""

    spans: tuple[Span, ...]
    ends_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Seconds of a step in the long run: the first one, which finds everybody idle, left out."""
        if len(self.ends_s) == 1:
            return self.ends_s[0]
        return (self.ends_s[-1] - self.ends_s[0]) / (len(self.ends_s) - 1)

    def busy_s(self, lane: str) -> float:
        """Seconds a step in which `lane` was at work."""
        whole_s = sum(span.end_s - span.begin_s for span in self.spans if span.lane == lane)
        return whole_s / len(self.ends_s)


TRUSTED, COMPUTE = "trusted", "compute"
# The engine acknowledges late frames after this long if nothing else makes it (channel.link).
_ACK_S = 0.05
# A settlement's messages: a few hundred bytes each.
_SETTLE_BYTES = 700


def simulate(chain: Chain, *, steps: int = 3) -> Run:
    """Run `steps` training steps.

    >>> chain = Chain(
    ...     micro_batches=2, in_flight=2, bottom_s=1, top_s=1, stages=(StageCosts(1),),
    ...     activation=0, output=0,
    ... )
    >>> simulate(chain, steps=1).ends_s
    (4.0,)
    """
    world = _World(chain)
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
    return Run(spans=tuple(world.spans), ends_s=tuple(ends))


@dataclass(frozen=True)
class _Message:
    kind: str
    micro_batch: int
    step: int
    size: int
    # Where a relay sends it on to; the one it is for otherwise.
    to: str


@dataclass(frozen=True)
class _Work:
    lane: str
    what: str
    message: tuple[int, int]  # micro-batch, step
    seconds: float


@dataclass(frozen=True)
class _Put:
    source: str
    dest: str
    message: _Message


@dataclass(frozen=True)
class _Take:
    at: str


_Wish = _Work | _Put | _Take
_Process = Generator[_Wish, _Message | None, None]


@dataclass
class _Wire:
    pipe: Pipe
    free_s: float = 0.0


@dataclass
class _Lane:
    """Credit of one direction between two parties: frames put, and those the sender knows as taken."""

    wire: _Wire
    back_delay_s: float
    put: int = 0
    known: int = 0
    taken: int = 0
    told: int = 0
    blocked: deque[tuple[_Process, _Put]] = field(default_factory=deque)


class _World:
    """The clock, the wires and the inboxes."""

    def __init__(self, chain: Chain) -> None:
        self.now_s = 0.0
        self.spans: list[Span] = []
        self._chain = chain
        self._events: list[tuple[float, int, _Process | None, object]] = []
        self._order = count()
        self._inbox: dict[str, deque[tuple[_Message, str]]] = {}
        self._waiting: dict[str, _Process] = {}
        self._up, self._down = _Wire(chain.up), _Wire(chain.down)
        self._between: dict[tuple[str, str], _Wire] = {}
        self._lanes: dict[tuple[str, str], _Lane] = {}

    def begin(self, process: _Process) -> None:
        """Let `process` run from now on."""
        self._later(0.0, process, None)

    def run(self) -> None:
        """Until nothing happens any more."""
        while self._events:
            self.now_s, _, process, value = heapq.heappop(self._events)
            if process is not None:
                self._resume(process, value if isinstance(value, _Message) else None)
            elif isinstance(value, _Lane):
                self._ack(value)
            elif isinstance(value, tuple):
                lane, taken = value
                self._known(lane, taken)
            else:
                assert isinstance(value, _Put)
                self._arrive(value)

    def _later(self, wait_s: float, process: _Process | None, value: object) -> None:
        heapq.heappush(self._events, (self.now_s + wait_s, next(self._order), process, value))

    def _resume(self, process: _Process, value: _Message | None) -> None:
        try:
            wish = process.send(value)
        except StopIteration:
            return
        match wish:
            case _Work(lane, what, (micro_batch, step), seconds):
                end_s = self.now_s + seconds
                if seconds:
                    self.spans.append(Span(lane, what, micro_batch, step, self.now_s, end_s))
                self._later(seconds, process, None)
            case _Put():
                lane_of = self._lane(wish.source, wish.dest)
                if lane_of.put - lane_of.known >= self._chain.window:
                    lane_of.blocked.append((process, wish))
                else:
                    self._send(lane_of, wish)
                    self._later(0.0, process, None)
            case _Take(at):
                inbox = self._inbox.setdefault(at, deque())
                if inbox:
                    self._later(0.0, process, self._taken(*inbox.popleft(), at=at))
                else:
                    self._waiting[at] = process

    def _send(self, lane: _Lane, put: _Put) -> None:
        lane.put += 1
        wire, message = lane.wire, put.message
        begin_s = max(self.now_s, wire.free_s)
        wire.free_s = begin_s + wire.pipe.sending_s(message.size)
        if wire.free_s > begin_s:
            name = f"{put.source} > {put.dest}"
            self.spans.append(
                Span(name, message.kind, message.micro_batch, message.step, begin_s, wire.free_s)
            )
        self._later(wire.free_s + wire.pipe.delay_s - self.now_s, None, put)

    def _arrive(self, put: _Put) -> None:
        process = self._waiting.pop(put.dest, None)
        if process is None:
            self._inbox.setdefault(put.dest, deque()).append((put.message, put.source))
        else:
            self._resume(process, self._taken(put.message, put.source, at=put.dest))

    def _taken(self, message: _Message, source: str, *, at: str) -> _Message:
        lane = self._lane(source, at)
        lane.taken += 1
        if lane.taken - lane.told >= max(1, self._chain.window // 2):
            self._ack(lane)
        else:
            self._later(_ACK_S, None, lane)
        return message

    def _ack(self, lane: _Lane) -> None:
        if lane.taken > lane.told:
            lane.told = lane.taken
            self._later(lane.back_delay_s, None, (lane, lane.taken))

    def _known(self, lane: _Lane, taken: int) -> None:
        lane.known = max(lane.known, taken)
        while lane.blocked and lane.put - lane.known < self._chain.window:
            process, put = lane.blocked.popleft()
            self._send(lane, put)
            self._later(0.0, process, None)

    def _lane(self, source: str, dest: str) -> _Lane:
        chain, key = self._chain, (source, dest)
        if key not in self._lanes:
            at_home = {TRUSTED, _RELAY}
            if source in at_home:
                wire, back_s = self._up, chain.down.delay_s
            elif dest in at_home:
                wire, back_s = self._down, chain.up.delay_s
            else:
                wire, back_s = _Wire(chain.between), chain.between.delay_s
            self._lanes[key] = _Lane(wire, back_s)
        return self._lanes[key]


_RELAY = "relay"
_FORWARD, _BACKWARD = "forward", "backward"


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

    def put(self, way: str, leg: int, *, micro_batch: int, step: int) -> _Put | None:
        """The message of leg `leg`, counted from the bottom; None if the job has none."""
        source, dest, size = self._next[way, leg]
        if size is None:
            return None
        inner = TRUSTED not in {source, dest}
        first = _RELAY if inner and self._chain.relayed else dest
        return _Put(source, first, _Message(way, micro_batch, step, size, dest))


def _trusted(
    chain: Chain, route: _Route, *, steps: int, ends: list[float], world: _World
) -> _Process:
    backward = chain.input_gradient is not None
    last = len(chain.stages)
    early: dict[tuple[str, int], _Message] = {}
    unsettled = 0
    for step in range(steps):
        for action in ORDERS[chain.order](
            chain.micro_batches, in_flight=chain.in_flight, backward=backward
        ):
            i = action.micro_batch
            wanted = _AWAITED.get(action.op)
            while wanted is not None and (wanted, i) not in early:
                came = yield _Take(TRUSTED)
                assert came is not None
                early[came.kind, came.micro_batch] = came
            if wanted is not None:
                del early[wanted, i]
            yield _Work(TRUSTED, action.op.value, (i, step), _seconds(chain)[action.op])
            leaving = {Op.BOTTOM: (_FORWARD, 0), Op.TOP: (_BACKWARD, last)}.get(action.op)
            if leaving is not None:
                put = route.put(*leaving, micro_batch=i, step=step)
                if put is not None:
                    yield put
        yield _Work(TRUSTED, "update", (0, step), chain.update_s)
        unsettled += chain.messages
        if chain.settle_messages and unsettled >= chain.settle_messages:
            unsettled = 0
            first = route.put(_FORWARD, 0, micro_batch=0, step=step)
            assert first is not None
            ask = _Message(_SETTLE, 0, step, _SETTLE_BYTES, first.dest)
            yield _Put(TRUSTED, first.dest, ask)
            yield _Take(TRUSTED)
        ends.append(world.now_s)


_SETTLE = "settle"
_AWAITED: Mapping[Op, str] = {Op.TOP: _FORWARD, Op.BOTTOM_BACKWARD: _BACKWARD}


def _seconds(chain: Chain) -> dict[Op, float]:
    return {
        Op.BOTTOM: chain.bottom_s,
        Op.TOP: chain.top_s,
        Op.BOTTOM_BACKWARD: chain.bottom_backward_s,
    }


def _compute(chain: Chain, route: _Route, *, place: int, name: str) -> _Process:
    costs = chain.stages[place]
    while True:
        message = yield _Take(name)
        assert message is not None
        where = (message.micro_batch, message.step)
        if message.kind == _SETTLE:
            yield _Put(name, TRUSTED, _Message(_SETTLE, *where, _SETTLE_BYTES, TRUSTED))
            continue
        forward = message.kind == _FORWARD
        seconds = costs.forward_s if forward else costs.backward_s
        yield _Work(name, message.kind, where, seconds)
        put = route.put(message.kind, place + forward, micro_batch=where[0], step=where[1])
        if put is not None:
            yield put
        if not forward and message.micro_batch == chain.micro_batches - 1:
            yield _Work(name, "update", where, chain.stage_update_s)


def _relay(chain: Chain) -> _Process:
    while True:
        message = yield _Take(_RELAY)
        assert message is not None
        yield _Work(_RELAY, message.kind, (message.micro_batch, message.step), chain.relay_s)
        yield _Put(_RELAY, message.to, message)
