"""The one door: every message that leaves is judged, written, read back, judged again and logged here.

`release` gives the only thing that a channel sends. `admit` is the same door from outside. Whatever
goes wrong, nothing is released and the door stays shut: there is no switch to leave it open. Knows
tensors only as what codecs turn into parts; never touches a network.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from splitlearn.audit import Dp, Log, PartShape, Witness
from splitlearn.channel.base import Released
from splitlearn.errors import AuditError, RefusedError, SplitLearnError, WireError
from splitlearn.gate.account import Account, Outcome
from splitlearn.gate.batches import check_written, pack_ids
from splitlearn.gate.facts import facts_of, with_bytes
from splitlearn.gate.rows import (
    check_arguments,
    check_hashes,
    check_rows,
    error_of,
    read_back,
    rows_of,
    same_bits,
)
from splitlearn.identity import PartyName
from splitlearn.policy import (
    Direction,
    Facts,
    LabelGuard,
    Ledger,
    Policy,
    Private,
    check_finite,
    check_row_norm,
    check_weights,
)
from splitlearn.roles import Kind
from splitlearn.wire import frames, samples, tensors
from splitlearn.wire.frames import BEARS_TENSORS, Frame
from splitlearn.wire.ids import IdBatch, unpack
from splitlearn.wire.messages import Ids, Meta, Round, Samples, StepTensor, Terms
from splitlearn.wire.tensors import Part

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from splitlearn.codecs import Codec

__all__ = ["Gate", "Order", "Private"]

# N rows that travel, D columns


class Order(Protocol):
    """What the gate asks a session: is this message legal now, and which number has it."""

    def stamp(self, kind: Kind, meta: Meta) -> int: ...

    def check(self, kind: Kind, meta: Meta, *, seq: int) -> None: ...


class Gate:
    """The door of one party towards one peer, for one conversation.

    Messages pass one at a time, whichever threads bring them; the tensors of several may be opened meanwhile.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        log: Log,
        session: Order,
        me: PartyName,
        peer: PartyName,
        binding: str,
        offer: Terms,
        ledger: Ledger | None = None,
    ) -> None:
        """Use `Gate.open`."""
        self._ledger = ledger or Ledger(policy, spent=log.spent(offer.run))
        self._session, self._me, self._peer = session, me, peer
        # Ids of another vocabulary than the round's do not pass; no other conversation has any.
        self._vocabulary = offer.vocabulary if isinstance(offer, Round) else 0
        self._account = Account(policy, log=log, me=me, peer=peer, binding=binding, offer=offer)
        # Parts of frames that were admitted and not opened yet: parsed once.
        self._admitted: dict[int, tuple[Frame, tuple[Part, ...]]] = {}
        self._shut: str | None = None
        # What the label guard said of messages that it let pass.
        self.warnings: list[str] = []
        self._guard = LabelGuard(policy.guard) if policy.guard is not None else None
        self._busy = threading.RLock()

    @classmethod
    def open(
        cls,
        policy: Policy,
        *,
        log: Log,
        session: Order,
        me: PartyName,
        peer: PartyName,
        binding: str,
        offer: Terms,
        software: str,
        vocabulary: int | None = None,
        ledger: Ledger | None = None,
    ) -> "Gate":
        """Log that a conversation begins and open the door for it. What `offer` says goes on record.

        binding: fingerprint of the peer's certificate. software: name and version of this program.
        ledger: of the run, where it has a door towards each of several peers, whose bytes add up; by
        itself a door counts on from what `log` has.
        Raises AuditError if it cannot be logged.
        """
        gate = cls(
            policy,
            log=log,
            session=session,
            me=me,
            peer=peer,
            binding=binding,
            offer=offer,
            ledger=ledger,
        )
        gate._account.begin(software=software, vocabulary=vocabulary)
        return gate

    @property
    def witness(self) -> Witness:
        """Receipts and heads of this conversation's logs."""
        return self._account.witness

    def release(
        self,
        kind: Kind,
        *,
        meta: Meta,
        tensor: "Tensor | None" = None,
        codec: "Codec | None" = None,
        parts: tuple[Part, ...] | None = None,
        ids: IdBatch | None = None,
        private: Private | None = None,
        dp: Dp | None = None,
        keep: bool = False,
    ) -> Released:
        """Judge a message, write it, judge what was written, log it; the bytes to send.

        tensor, codec: the rows (N, D) of a step's message and how to write them; private: what they
        must not be recognisable by, owed by a trusted and an encoder party with each of them. parts:
        weights, or hashes of samples. ids: a generator's batch, written for the vocabulary of the round.
        dp: for the record, the noise that is in the tensor. keep: seal the frame beside the log, so
        that it can be attacked later; for canaries only.

        Raises RefusedError: the policy says no. SessionError: not legal now. AuditError: cannot be
        logged. In each case nothing may be sent, and the gate stays shut.
        """
        attempt = _Attempt(kind, "out")
        with self._busy, self._door(attempt):
            check_arguments(kind, tensor=tensor, codec=codec, parts=parts, ids=ids)
            attempt.parts = tuple(PartShape.of(part) for part in parts or ())
            x_ND = None
            if tensor is not None:
                x_ND = rows_of(tensor)
                attempt.parts = (PartShape.before_encoding(x_ND.shape),)
            facts = self._facts(kind, "out", meta, private=private)
            facts = with_bytes(facts, parts=parts or (), wire_bytes=0)
            if x_ND is not None and codec is not None:
                rows, columns = x_ND.shape
                facts = _replace(facts, codec=codec.name, rows=rows, columns=columns)
            self._ledger.judge(facts)
            self._check_rows(x_ND, kind=kind, meta=meta, private=private, coded=False)
            if tensor is not None and codec is not None:
                parts = codec.encode(tensor)
            if ids is not None:
                parts = pack_ids(ids, meta=meta, vocabulary=self._vocabulary)

            payload = b"" if parts is None else tensors.encode(parts)
            seq = self._session.stamp(kind, meta)
            raw = frames.encode(kind, seq=seq, meta=meta, payload=payload)

            # From here on only what stands in `raw` counts.
            frame = frames.decode(raw)
            written = tensors.decode(frame.payload) if parts is not None else ()
            attempt.parts = tuple(PartShape.of(part) for part in written)
            if (frame.kind, frame.seq, frame.meta) != (kind, seq, meta):
                raise RefusedError(
                    f"{kind} reads back as another message than was written; our own encoder is at "
                    "fault",
                    rule="content.frame",
                )
            facts = with_bytes(facts, parts=written, wire_bytes=len(raw))
            rule = self._ledger.take(facts)
            error: float | None = None
            if x_ND is not None and codec is not None:
                decoded_ND = read_back(written, codec=codec, rows=facts.rows, columns=facts.columns)
                if not same_bits(decoded_ND, x_ND):  # what was judged before is judged
                    self._check_rows(decoded_ND, kind=kind, meta=meta, private=private, coded=True)
                    error = error_of(decoded_ND, x_ND)
            elif ids is not None:
                check_written(written, batch=ids, vocabulary=self._vocabulary)
            elif isinstance(meta, Samples):
                check_hashes(written, meta=meta)
            elif written:
                check_weights(written)
            self._account.enter(
                frame,
                facts=facts,
                rule=rule,
                parts=attempt.parts,
                dp=dp,
                keep=keep,
                error=error,
            )
            return Released(kind=kind, seq=seq, raw=raw, error=error or 0.0)

    def admit(self, frame: Frame) -> None:
        """Take a frame from the peer: legal now, allowed by a rule, well formed; then log it.

        Raises SessionError, RefusedError, WireError or AuditError; the gate stays shut then.
        """
        attempt = _Attempt(frame.kind, "in")
        with self._busy, self._door(attempt):
            self._session.check(frame.kind, frame.meta, seq=frame.seq)
            parts = tensors.decode(frame.payload) if frame.kind in BEARS_TENSORS else ()
            attempt.parts = tuple(PartShape.of(part) for part in parts)
            facts = self._facts(frame.kind, "in", frame.meta, private=None)
            facts = with_bytes(facts, parts=parts, wire_bytes=len(frame.raw))
            rule = self._ledger.take(facts)
            self._account.enter(frame, facts=facts, rule=rule, parts=attempt.parts)
            if parts:
                self._admitted[frame.seq] = (frame, parts)

    def open_tensor(self, frame: Frame, *, codec: "Codec", rows: int, width: int) -> "Tensor":
        """The rows (rows, width) in an admitted frame, finite and within the policy's norm.

        Raises WireError where the peer sent something else, RefusedError where our policy says no.
        """
        attempt = _Attempt(frame.kind, "in")
        with self._door(attempt):
            with self._busy:
                parts = self._parts_of(frame)
                attempt.parts = tuple(PartShape.of(part) for part in parts)
                facts = self._facts(frame.kind, "in", frame.meta, private=None)
                facts = _replace(facts, codec=codec.name, rows=rows, columns=width)
                rule = self._ledger.judge(facts)
            # Others may pass meanwhile: this is as much work as an encoder's.
            x_ND = codec.decode(parts, rows=rows, width=width)
            with self._blaming_the_peer():
                values_ND = rows_of(x_ND)
                check_finite(values_ND)
                if rule.max_row_norm is not None:
                    check_row_norm(values_ND, limit=rule.max_row_norm)
            return x_ND

    def open_ids(self, frame: Frame) -> IdBatch:
        """The batch in an admitted frame: whole, and of the round's vocabulary. Raises WireError."""
        attempt = _Attempt(frame.kind, "in")
        with self._busy, self._door(attempt):
            parts = self._parts_of(frame)
            attempt.parts = tuple(PartShape.of(part) for part in parts)
            assert isinstance(frame.meta, Ids)
            return unpack(parts, lengths=frame.meta.lengths, vocabulary=self._vocabulary)

    def open_hashes(self, frame: Frame) -> samples.Hashes:
        """The hashes of samples in an admitted frame, ascending. Raises WireError."""
        attempt = _Attempt(frame.kind, "in")
        with self._busy, self._door(attempt):
            parts = self._parts_of(frame)
            attempt.parts = tuple(PartShape.of(part) for part in parts)
            assert isinstance(frame.meta, Samples)
            return samples.unpack(parts, meta=frame.meta)

    def refuse(self, kind: Kind, *, rule: str) -> None:
        """Log that the peer was cut off before a message of it came whole, and shut the door."""
        with self._busy:
            if self._shut is None:
                self._shut = f"the peer was cut off ({rule})"
                self._account.deny(kind, direction="in", parts=(), rule=rule)

    def open_parts(self, frame: Frame) -> tuple[Part, ...]:
        """The weights in an admitted frame, all finite. Raises WireError."""
        attempt = _Attempt(frame.kind, "in")
        with self._busy, self._door(attempt):
            parts = self._parts_of(frame)
            attempt.parts = tuple(PartShape.of(part) for part in parts)
            with self._blaming_the_peer():
                check_weights(parts)
            return parts

    def _parts_of(self, frame: Frame) -> tuple[Part, ...]:
        admitted, parts = self._admitted.pop(frame.seq, (None, ()))
        return parts if admitted is frame else tensors.decode(frame.payload)

    def vouch(self, hop: "Gate") -> None:
        """Put the newest head of the log behind another gate on record behind this one: whoever countersigns
        this log's heads bears witness to that log too.

        Raises AuditError if it cannot be logged.
        """
        with self._busy:
            self._account.vouch(hop._account)  # noqa: SLF001 - the same class

    def close(self, *, outcome: Outcome) -> None:
        """Shut the door, log the conversation's totals and sign the log's head. May be called twice.

        Raises AuditError if it cannot be logged.
        """
        with self._busy:
            if self._shut == _CLOSED:
                return
            self._shut = _CLOSED
            self._account.close(outcome)

    @contextmanager
    def _door(self, attempt: "_Attempt") -> Iterator[None]:
        """Lets one message at a time through, and nothing any more after the first fault."""
        if self._shut is not None:
            raise RefusedError(
                f"{attempt.kind} {attempt.direction} is refused because {self._shut}; "
                "start the run again",
                rule="gate-shut",
            )
        try:
            yield
        except BaseException as error:
            rule = error.rule if isinstance(error, RefusedError) else type(error).__name__
            with self._busy:
                self._shut = f"the gate shut at {attempt.kind} {attempt.direction} ({rule})"
                if isinstance(error, SplitLearnError) and not isinstance(error, AuditError):
                    self._account.deny(
                        attempt.kind, direction=attempt.direction, parts=attempt.parts, rule=rule
                    )
            raise

    @contextmanager
    def _blaming_the_peer(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            raise WireError(f"{self._peer.uri} sent what may not come in: {error}") from error

    def _facts(
        self, kind: Kind, direction: Direction, meta: Meta, *, private: Private | None
    ) -> Facts:
        return facts_of(
            kind,
            direction,
            meta,
            peer=self._peer.role,
            vocabulary=self._vocabulary,
            private=private,
        )

    def _check_rows(
        self,
        x_ND: "NDArray[np.float32] | None",
        *,
        kind: Kind,
        meta: Meta,
        private: Private | None,
        coded: bool,
    ) -> None:
        """The content checks that a party of this role owes for a message of this kind."""
        if x_ND is None or not isinstance(meta, StepTensor):
            return
        check_rows(x_ND, role=self._me.role, kind=kind, meta=meta, private=private, coded=coded)
        if self._guard is not None and private is not None and private.watched and not coded:
            said = self._guard.look(x_ND, kind=kind, private=private, packed=meta.packed)
            self.warnings += [said] if said is not None else []


_CLOSED = "it was closed"
_replace = msgspec.structs.replace


@dataclass
class _Attempt:
    """A message on its way through the door: what a `denied` record would say of it."""

    kind: Kind
    direction: Direction
    parts: tuple[PartShape, ...] = ()
