"""The conversation of a decoder party with an encoder party: terms, samples, then rows as they are asked for.

The decoder party asks and the encoder party answers, so nothing ever crosses. A training step is over when
its gradient has gone back, where the encoder's adapters train; where they stand still no gradient is legal,
and a sample that was answered once need not be asked for again.
"""

from dataclasses import dataclass
from enum import StrEnum

from splitlearn.errors import SessionError
from splitlearn.roles import Kind, Role
from splitlearn.session.legal import Endpoint, Table
from splitlearn.session.steps import MAX_UNSETTLED
from splitlearn.wire.messages import (
    Finish,
    Meta,
    Pairing,
    Resume,
    Samples,
    Step,
    StepTensor,
    Want,
)

__all__ = ["PAIR_NEXT", "PairSession", "PairState"]


class PairState(StrEnum):
    """Where a conversation stands."""

    IDLE = "idle"
    PAIRED = "paired"
    ACCEPTED = "accepted"
    NAMED = "named"
    ALIGNED = "aligned"
    STARTING = "starting"
    OPEN = "open"
    ASKED = "asked"
    ANSWERED = "answered"
    SAVING = "saving"
    SETTLING = "settling"
    COUNTERSIGNING = "countersigning"
    FINISHING = "finishing"
    CLOSED = "closed"


_E, _D = Role.ENCODER, Role.DECODER
_OPEN = PairState.OPEN

PAIR_NEXT: Table[PairState] = {
    PairState.IDLE: {(_D, Kind.PAIRING): PairState.PAIRED},
    PairState.PAIRED: {(_E, Kind.ACCEPT): PairState.ACCEPTED},
    PairState.ACCEPTED: {(_E, Kind.SAMPLES): PairState.NAMED},
    PairState.NAMED: {(_D, Kind.SAMPLES): PairState.ALIGNED},
    PairState.ALIGNED: {(_D, Kind.RESUME): PairState.STARTING},
    PairState.STARTING: {(_E, Kind.READY): _OPEN},
    _OPEN: {
        (_D, Kind.WANT): PairState.ASKED,
        (_D, Kind.CHECKPOINT): PairState.SAVING,
        (_D, Kind.SETTLE): PairState.SETTLING,
        (_D, Kind.FINISH): PairState.FINISHING,
    },
    # Where no gradient is due the answer leads back to OPEN.
    PairState.ASKED: {(_E, Kind.ACTIVATION): PairState.ANSWERED},
    PairState.ANSWERED: {(_D, Kind.GRADIENT): _OPEN},
    PairState.SAVING: {(_E, Kind.SAVED): _OPEN},
    PairState.SETTLING: {(_E, Kind.SETTLED): PairState.COUNTERSIGNING},
    PairState.COUNTERSIGNING: {(_D, Kind.COUNTERSIGNED): _OPEN},
    PairState.FINISHING: {(_E, Kind.CLOSED): PairState.CLOSED},
    PairState.CLOSED: {},
}


@dataclass
class PairSession(Endpoint[PairState]):
    """One end's view of one conversation. `me` and `peer` are roles, ENCODER and DECODER.

    next_step: optimiser steps done, as far as the link has heard of them. aligned: how many samples both
    have, to train on and held out.
    """

    state: PairState = PairState.IDLE
    next_step: int = 0
    pairing: Pairing | None = None
    named: Samples | None = None
    aligned: Samples | None = None
    wanted: Want | None = None

    @property
    def trains(self) -> bool:
        """Whether the encoder's adapters do."""
        return self.pairing is not None and self.pairing.trains

    def _table(self) -> Table[PairState]:
        return PAIR_NEXT

    def _judge(self, kind: Kind, meta: Meta, *, following: PairState) -> PairState:
        match meta:
            case Pairing():
                self.pairing = meta
            case Samples():
                self._align(meta)
            case Resume():
                self.next_step = meta.step
            case Want():
                self._want(meta)
            case StepTensor():
                following = self._tensor(kind, meta, following=following)
            case Step():
                self._save(kind, meta)
            case Finish():
                if meta.weights:
                    raise SessionError(
                        f"{kind} asks for weights, and adapters stay; {self._view()}"
                    )
            case _:
                pass
        return following

    def _align(self, meta: Samples) -> None:
        """First what the encoder party has, then what both have: the table knows who says which."""
        had = self.named
        if had is None:
            self.named = meta
            return
        if meta.train > had.train or meta.evaluate > had.evaluate:
            raise SessionError(
                f"{Kind.SAMPLES} of {meta.train} and {meta.evaluate} samples in common, more than were "
                f"named; {self._view()}"
            )
        self.aligned = meta

    def _want(self, meta: Want) -> None:
        if self.unsettled > MAX_UNSETTLED:
            raise SessionError(
                f"{Kind.WANT} at step {meta.step} while {self.unsettled} messages are without a "
                f"receipt; {self._view()} expected {Kind.SETTLE} first"
            )
        late = meta.step < self.next_step or (self.trains and meta.step != self.next_step)
        if late:
            raise SessionError(f"{Kind.WANT} names step {meta.step}; {self._view()}")
        aligned, terms = self.aligned, self.pairing
        assert aligned is not None and terms is not None  # noqa: PT018 - the table's order
        count = aligned.train if meta.phase == "train" else aligned.evaluate
        if len(meta.samples) > terms.examples or max(meta.samples) >= count:
            raise SessionError(
                f"{Kind.WANT} of {len(meta.samples)} samples, the last numbered {max(meta.samples)}; "
                f"at most {terms.examples} of {count} were agreed on; {self._view()}"
            )
        self.next_step, self.wanted = meta.step, meta

    def _tensor(self, kind: Kind, meta: StepTensor, *, following: PairState) -> PairState:
        """An answer, or its gradient: of the samples asked for, in one piece, without padding."""
        want, terms = self.wanted, self.pairing
        assert want is not None and terms is not None  # noqa: PT018 - the table's order
        place = (meta.step, meta.phase, meta.micro_batch, meta.micro_batches, meta.packed)
        expected = (want.step, want.phase, 0, 1, True)
        if place != expected or meta.width > terms.length or meta.memory is not None:
            raise SessionError(
                f"{kind} of step {meta.step} to {meta.phase} on, {meta.width} rows long; expected an "
                f"answer to {want.phase} on of at most {terms.length}; {self._view()}"
            )
        if kind is Kind.GRADIENT:
            if meta.lengths:
                raise SessionError(f"{kind} with lengths of its own; {self._view()}")
            self.next_step = meta.step + 1
            return following
        if len(meta.lengths) != len(want.samples) or max(meta.lengths) != meta.width:
            raise SessionError(
                f"{kind} of {len(meta.lengths)} examples padded to {meta.width}, where "
                f"{len(want.samples)} were asked for; {self._view()}"
            )
        due = self.trains and meta.phase == "train"
        return following if due else _OPEN

    def _save(self, kind: Kind, meta: Step) -> None:
        if not self.trains or meta.step != self.next_step:
            raise SessionError(f"{kind} of step {meta.step}; {self._view()}")
        if meta.best is not None:
            raise SessionError(
                f"{kind} has step {meta.best} kept; the newest are kept here, no best"
            )

    def _view(self) -> str:
        still = "" if self.trains or self.pairing is None else ", adapters stand still"
        return f"the {self.me} party's view is {self.state.value}, step {self.next_step}{still}"
