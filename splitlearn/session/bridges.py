"""The conversation of two compute parties that host neighbouring layers of a direct chain.

Whoever has the layers before says what this is about, sends activations and leads settlements; whoever has
those after gives gradients back, where the layers train. Both are compute parties, so who may say what goes
by the end. Which step comes is the business of neither: the trusted party's conversations with both say so,
and here a step is only counted.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from splitlearn.errors import SessionError
from splitlearn.roles import Kind
from splitlearn.session.legal import End, Endpoint, Side, Table
from splitlearn.session.steps import MAX_UNSETTLED
from splitlearn.wire.messages import Accept, Bridge, Finish, Meta, Resume, StepTensor

__all__ = ["BRIDGE_NEXT", "BridgeSession", "BridgeState"]


class BridgeState(StrEnum):
    """Where a conversation stands."""

    IDLE = "idle"
    OFFERED = "offered"
    AGREED = "agreed"
    STARTING = "starting"
    OPEN = "open"
    SETTLING = "settling"
    COUNTERSIGNING = "countersigning"
    FINISHING = "finishing"
    CLOSED = "closed"


_B, _A = Side.BEFORE, Side.AFTER
_OPEN = BridgeState.OPEN

BRIDGE_NEXT: Table[BridgeState] = {
    BridgeState.IDLE: {(_B, Kind.BRIDGE): BridgeState.OFFERED},
    BridgeState.OFFERED: {(_A, Kind.ACCEPT): BridgeState.AGREED},
    BridgeState.AGREED: {(_B, Kind.RESUME): BridgeState.STARTING},
    BridgeState.STARTING: {(_A, Kind.READY): _OPEN},
    _OPEN: {
        (_B, Kind.ACTIVATION): _OPEN,
        (_A, Kind.INPUT_GRADIENT): _OPEN,
        (_B, Kind.SETTLE): BridgeState.SETTLING,
        (_B, Kind.FINISH): BridgeState.FINISHING,
    },
    BridgeState.SETTLING: {(_A, Kind.SETTLED): BridgeState.COUNTERSIGNING},
    BridgeState.COUNTERSIGNING: {(_B, Kind.COUNTERSIGNED): _OPEN},
    BridgeState.FINISHING: {(_A, Kind.CLOSED): BridgeState.CLOSED},
    BridgeState.CLOSED: {},
}

_BETWEEN_STEPS = frozenset({Kind.SETTLE, Kind.FINISH})


@dataclass
class BridgeSession(Endpoint[BridgeState]):
    """One end's view of one conversation. `me` and `peer` are COMPUTE both; side: which end is ours.

    next_step: training steps that are over on this hop. Of one under way, `gone` activations and `back`
    gradients of `micro_batches` went over it, in their order.
    """

    state: BridgeState = BridgeState.IDLE
    side: Side = Side.BEFORE
    next_step: int = 0
    bridge: Bridge | None = None
    phase: str = ""
    micro_batches: int = 0
    gone: int = 0
    back: int = 0
    # Of each activation: what its gradient has to say again.
    places: dict[int, tuple[int, bool]] = field(default_factory=dict, repr=False)

    @property
    def ends(self) -> tuple[End, End]:
        """Ours and the peer's, as the table names them."""
        return (_B, _A) if self.side is _B else (_A, _B)

    @property
    def between_steps(self) -> bool:
        """Whether nothing is under way."""
        return not self.micro_batches

    def _table(self) -> Table[BridgeState]:
        return BRIDGE_NEXT

    def _judge(self, kind: Kind, meta: Meta, *, following: BridgeState) -> BridgeState:
        match meta:
            case Bridge():
                self.bridge = meta
            case Accept():
                if meta.needs or len(meta.held) != 1:
                    raise SessionError(
                        f"{kind} names {len(meta.held)} steps and asks for {len(meta.needs)} groups of "
                        f"weights; a neighbour names the one step it stands at; {self._view()}"
                    )
                self.next_step = meta.held[0]
            case Resume():
                if meta.step != self.next_step:
                    raise SessionError(f"{kind} names step {meta.step}; {self._view()}")
            case Finish() if meta.weights:
                raise SessionError(f"{kind} asks for weights, and a neighbour has none to give")
            case StepTensor():
                self._tensor(kind, meta)
            case _:
                pass
        if kind in _BETWEEN_STEPS and not self.between_steps:
            raise SessionError(f"{kind} in the middle of step {self.next_step}; {self._view()}")
        return following

    def _tensor(self, kind: Kind, meta: StepTensor) -> None:
        bridge = self.bridge
        assert bridge is not None  # the table's order
        trains = bridge.trains and meta.phase == "train"
        if meta.phase not in {"evaluate", bridge.purpose}:
            raise SessionError(
                f"{kind} to {meta.phase} on, on a hop of a run to {bridge.purpose}; {self._view()}"
            )
        if self.between_steps:
            self._begin(kind, meta)
        if (meta.step, meta.phase, meta.micro_batches) != (
            self.next_step,
            self.phase,
            self.micro_batches,
        ):
            raise SessionError(
                f"{kind} is micro-batch {meta.micro_batch} of {meta.micro_batches} of {meta.phase} step "
                f"{meta.step}; {self._view()}"
            )
        if kind is Kind.ACTIVATION:
            self._go(kind, meta)
        else:
            self._return(kind, meta, trains=trains)
        if (self.back if trains else self.gone) == self.micro_batches:
            self.next_step += self.phase == "train"
            self.micro_batches = self.gone = self.back = 0
            self.places.clear()

    def _begin(self, kind: Kind, meta: StepTensor) -> None:
        if kind is not Kind.ACTIVATION or meta.step != self.next_step or meta.micro_batches < 1:
            raise SessionError(
                f"{kind} of {meta.phase} step {meta.step} while {self._view()}; expected the activation "
                f"of step {self.next_step}"
            )
        if self.unsettled > MAX_UNSETTLED:
            raise SessionError(
                f"{kind} of {meta.phase} step {meta.step} while {self.unsettled} messages are without a "
                f"receipt; {self._view()} expected {Kind.SETTLE} first"
            )
        self.phase, self.micro_batches = meta.phase, meta.micro_batches

    def _go(self, kind: Kind, meta: StepTensor) -> None:
        if meta.micro_batch != self.gone or not meta.lengths or max(meta.lengths) > meta.width:
            raise SessionError(
                f"{kind} is micro-batch {meta.micro_batch} of {len(meta.lengths)} examples padded to "
                f"{meta.width}; expected number {self.gone} and examples within the padding; {self._view()}"
            )
        self.places[self.gone] = (meta.width, meta.packed)
        self.gone += 1

    def _return(self, kind: Kind, meta: StepTensor, *, trains: bool) -> None:
        if not trains or meta.micro_batch != self.back or self.back >= self.gone:
            raise SessionError(
                f"{kind} is micro-batch {meta.micro_batch}, of {meta.phase} step {meta.step}, and gradients "
                f"come back: {trains}; {self._view()}"
            )
        if (meta.width, meta.packed) != self.places[self.back] or meta.lengths:
            raise SessionError(
                f"{kind} of micro-batch {meta.micro_batch} is padded to {meta.width}, which its activation "
                f"was not; {self._view()}"
            )
        self.back += 1

    def _view(self) -> str:
        where = f"the view of the party {self.side} is {self.state.value}, step {self.next_step}"
        if self.between_steps:
            return where
        return f"{where} ({self.gone} of {self.micro_batches} there, {self.back} back)"
