"""The conversation of a generator with a discriminator: one round's terms, then ids one way.

Both ends may speak at once: batches are on their way while the discriminator asks for more or says that
it has enough. So each end judges by what it has said and heard itself, and the tables allow what can
cross. What the discriminator never asked for is illegal, whatever crosses.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from splitlearn.errors import SessionError
from splitlearn.roles import Kind, Role
from splitlearn.session.legal import Endpoint, Table
from splitlearn.session.steps import MAX_UNSETTLED
from splitlearn.wire.messages import Ask, Enlist, Ids, Meta, Round

__all__ = ["STREAM_NEXT", "StreamSession", "StreamState"]


class StreamState(StrEnum):
    """Where a conversation stands."""

    IDLE = "idle"
    CALLED = "called"
    ENLISTED = "enlisted"
    STREAMING = "streaming"
    SETTLING = "settling"
    COUNTERSIGNING = "countersigning"
    CLOSED = "closed"


_D, _G = Role.DISCRIMINATOR, Role.GENERATOR
_STREAMING, _SETTLING = StreamState.STREAMING, StreamState.SETTLING
_COUNTERSIGNING = StreamState.COUNTERSIGNING

STREAM_NEXT: Table[StreamState] = {
    StreamState.IDLE: {(_D, Kind.ROUND): StreamState.CALLED},
    StreamState.CALLED: {(_G, Kind.ENLIST): StreamState.ENLISTED},
    StreamState.ENLISTED: {(_D, Kind.ASK): _STREAMING},
    _STREAMING: {
        (_G, Kind.IDS): _STREAMING,
        (_D, Kind.ASK): _STREAMING,
        (_D, Kind.ENOUGH): _STREAMING,
        (_G, Kind.REPORT): _STREAMING,
        (_G, Kind.SETTLE): _SETTLING,
        (_D, Kind.CLOSED): StreamState.CLOSED,
    },
    # What the discriminator said before it heard of the settlement arrives in the middle of it.
    _SETTLING: {
        (_D, Kind.SETTLED): _COUNTERSIGNING,
        (_D, Kind.ASK): _SETTLING,
        (_D, Kind.ENOUGH): _SETTLING,
    },
    _COUNTERSIGNING: {
        (_G, Kind.COUNTERSIGNED): _STREAMING,
        (_D, Kind.ASK): _COUNTERSIGNING,
        (_D, Kind.ENOUGH): _COUNTERSIGNING,
    },
    StreamState.CLOSED: {},
}


@dataclass
class StreamSession(Endpoint[StreamState]):
    """One end's view of one conversation. `me` and `peer` are roles, GENERATOR and DISCRIMINATOR."""

    state: StreamState = StreamState.IDLE
    enough: bool = False
    reported: bool = False
    round: Round | None = None
    # By phase: batches asked for and sent so far, and the lowest index that may come next.
    asked: dict[str, int] = field(default_factory=lambda: {"train": 0, "evaluate": 0})
    sent: dict[str, int] = field(default_factory=lambda: {"train": 0, "evaluate": 0})
    following: dict[str, int] = field(default_factory=lambda: {"train": 0, "evaluate": 0})

    @property
    def next_step(self) -> int:
        """The batch that is awaited, for messages about waiting."""
        return self.following["train"]

    def stamp(self, kind: Kind, meta: Meta) -> int:
        """Take `kind` as the next thing we say; its sequence number.

        Raises SessionError if we may not say it now; the conversation is over then.
        """
        if kind is Kind.IDS and self.enough:
            raise SessionError(f"{kind} after {Kind.ENOUGH} was heard; {self._view()}")
        return super().stamp(kind, meta)

    def owed(self, received: int) -> int:
        """How many of our messages a receipt in a SETTLE that has come must cover, if it is for `received`.

        What we said while it was under way falls to the next one; after the report we say nothing.
        """
        return self.next_out - 1 if self.reported else min(self.next_out - 1, received)

    def wanted(self, phase: str) -> int:
        """Batches of a phase that were asked for and not sent yet."""
        return self.asked[phase] - self.sent[phase]

    def _table(self) -> Table[StreamState]:
        return STREAM_NEXT

    def _judge(self, kind: Kind, meta: Meta, *, following: StreamState) -> StreamState:
        match meta:
            case Round():
                self.round = meta
                self.following["train"] = meta.following
            case Enlist():
                # A generator that came further than we took from it does not go back.
                self.following["train"] = max(self.following["train"], meta.index)
            case Ask():
                self._ask(meta)
            case Ids():
                self._batch(meta)
            case _:
                self._word(kind)
        return following

    def _ask(self, meta: Ask) -> None:
        asked = {"train": meta.train, "evaluate": meta.evaluate}
        if self.enough or any(asked[phase] < self.asked[phase] for phase in asked):
            raise SessionError(f"{Kind.ASK} for {asked} after {self.asked}; {self._view()}")
        self.asked = asked

    def _batch(self, meta: Ids) -> None:
        phase = meta.phase
        if self.reported or self.sent[phase] >= self.asked[phase]:
            raise SessionError(
                f"{Kind.IDS} {meta.index} to {phase} on, {self.sent[phase] + 1} batches where "
                f"{self.asked[phase]} were asked for; {self._view()}"
            )
        if meta.index < self.following[phase]:
            raise SessionError(
                f"{Kind.IDS} {meta.index} to {phase} on comes again: expected "
                f"{self.following[phase]} or later; {self._view()}"
            )
        agreed = self.round
        if (
            agreed is None
            or len(meta.lengths) > agreed.examples
            or max(meta.lengths) > agreed.width
        ):
            raise SessionError(
                f"{Kind.IDS} {meta.index} of {len(meta.lengths)} examples, the longest of "
                f"{max(meta.lengths)} tokens, is larger than the round's batches; {self._view()}"
            )
        if self.unsettled > MAX_UNSETTLED + _CROSSING:
            raise SessionError(
                f"{Kind.IDS} {meta.index} while {self.unsettled} messages are without a receipt; "
                f"{self._view()} expected {Kind.SETTLE} first"
            )
        self.sent[phase] += 1
        self.following[phase] = meta.index + 1

    def _word(self, kind: Kind) -> None:
        if kind is Kind.ENOUGH:
            if self.enough:
                raise SessionError(f"{kind} twice; {self._view()}")
            self.enough = True
        elif kind is Kind.REPORT:
            if not self.enough or self.reported:
                raise SessionError(f"{kind} once, and after {Kind.ENOUGH}; {self._view()}")
            self.reported = True
        elif kind is Kind.CLOSED and (not self.reported or self.unsettled):
            raise SessionError(f"{kind} before a report and its receipt; {self._view()}")

    def _view(self) -> str:
        return (
            f"the {self.me} party's view is {self.state.value}, {self.sent['train']} of "
            f"{self.asked['train']} batches"
        )


# Messages of the discriminator that a generator cannot know of yet when it counts.
_CROSSING = 64
