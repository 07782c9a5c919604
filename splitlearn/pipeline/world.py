"""The clock, the wires and the inboxes of a simulation, and what a party in it may wish for.

A wire carries one message after the other, then each travels for the delay; sends do not block but for
the channel's credit. Never knows what a message is for.
"""

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from splitlearn.pipeline.chain import TRUSTED, Chain, Pipe, Span

__all__ = ["Message", "Process", "Put", "Take", "Work", "World"]

# The engine acknowledges late frames after this long if nothing else makes it (channel.link).
_ACK_S = 0.05


@dataclass(frozen=True)
class Message:
    """What is on a wire. size: bytes. leg: of its way through the chain, 0 between bottom and first stage."""

    kind: str
    micro_batch: int
    step: int
    size: int
    leg: int


@dataclass(frozen=True)
class Work:
    """Wish: to be busy for so long."""

    lane: str
    what: str
    message: tuple[int, int]  # micro-batch, step
    seconds: float


@dataclass(frozen=True)
class Put:
    """Wish: to send, as soon as there is credit for it."""

    source: str
    dest: str
    message: Message


@dataclass(frozen=True)
class Take:
    """Wish: the next message for `at`, in order of arrival."""

    at: str


# A party at work: it says what it wishes next and is sent on when it has it.
Process: TypeAlias = Generator[Work | Put | Take, Message | None, None]


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
    blocked: deque[tuple[Process, Put]] = field(default_factory=deque)


class World:
    """The clock, the wires and the inboxes."""

    def __init__(self, chain: Chain) -> None:
        self.now_s = 0.0
        self.spans: list[Span] = []
        self._chain = chain
        self._events: list[tuple[float, int, Process | None, object]] = []
        self._order = count()
        self._inbox: dict[str, deque[tuple[Message, str]]] = {}
        self._waiting: dict[str, Process] = {}
        self._up, self._down = _Wire(chain.up), _Wire(chain.down)
        self._lanes: dict[tuple[str, str], _Lane] = {}

    def begin(self, process: Process) -> None:
        """Let `process` run from now on."""
        self._later(0.0, process, None)

    def run(self) -> None:
        """Until nothing happens any more."""
        while self._events:
            self.now_s, _, process, value = heapq.heappop(self._events)
            if process is not None:
                self._resume(process, value if isinstance(value, Message) else None)
            elif isinstance(value, _Lane):
                self._ack(value)
            elif isinstance(value, tuple):
                lane, taken = value
                self._known(lane, taken)
            else:
                assert isinstance(value, Put)
                self._arrive(value)

    def _later(self, wait_s: float, process: Process | None, value: object) -> None:
        heapq.heappush(self._events, (self.now_s + wait_s, next(self._order), process, value))

    def _resume(self, process: Process, value: Message | None) -> None:
        try:
            wish = process.send(value)
        except StopIteration:
            return
        match wish:
            case Work(lane, what, (micro_batch, step), seconds):
                end_s = self.now_s + seconds
                if seconds:
                    self.spans.append(Span(lane, what, micro_batch, step, self.now_s, end_s))
                self._later(seconds, process, None)
            case Put():
                lane_of = self._lane(wish.source, wish.dest)
                if lane_of.put - lane_of.known >= self._chain.window:
                    lane_of.blocked.append((process, wish))
                else:
                    self._send(lane_of, wish)
                    self._later(0.0, process, None)
            case Take(at):
                inbox = self._inbox.setdefault(at, deque())
                if inbox:
                    self._later(0.0, process, self._taken(*inbox.popleft(), at=at))
                else:
                    self._waiting[at] = process

    def _send(self, lane: _Lane, put: Put) -> None:
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

    def _arrive(self, put: Put) -> None:
        process = self._waiting.pop(put.dest, None)
        if process is None:
            self._inbox.setdefault(put.dest, deque()).append((put.message, put.source))
        else:
            self._resume(process, self._taken(put.message, put.source, at=put.dest))

    def _taken(self, message: Message, source: str, *, at: str) -> Message:
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
            if source == TRUSTED:
                wire, back_s = self._up, chain.down.delay_s
            elif dest == TRUSTED:
                wire, back_s = self._down, chain.up.delay_s
            else:
                wire, back_s = _Wire(chain.between), chain.between.delay_s
            self._lanes[key] = _Lane(wire, back_s)
        return self._lanes[key]
