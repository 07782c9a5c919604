"""What one conversation puts into the log: its beginning, each message, each refusal, its end.

Knows how a message is recorded; never decides whether one may pass, and never holds back an error of
the log: what cannot be recorded is not sent.
"""

import hmac
from typing import Literal

import msgspec

from splitlearn.audit import (
    Blobs,
    Denied,
    Dp,
    HopHead,
    Log,
    PartShape,
    Party,
    Payload,
    PolicyChange,
    RunClose,
    RunOpen,
    Witness,
)
from splitlearn.identity import PartyName
from splitlearn.policy import Direction, Facts, Policy, Rule
from splitlearn.roles import Kind
from splitlearn.wire.frames import Frame
from splitlearn.wire.limits import PROTOCOL
from splitlearn.wire.messages import Ids, StepTensor, Terms, Want, said

__all__ = ["Account", "Outcome"]

Outcome = Literal["done", "failed", "interrupted", "refused"]


class Account:
    """The records of one conversation with one peer. Every method raises AuditError if it cannot log."""

    def __init__(
        self,
        policy: Policy,
        *,
        log: Log,
        me: PartyName,
        peer: PartyName,
        binding: str,
        offer: Terms,
    ) -> None:
        """binding: fingerprint of the peer's certificate."""
        self.witness = Witness(log, me=me, peer=peer, offer=offer)
        self._log, self._policy, self._policy_digest = log, policy, policy.digest
        self._me = Party(id=me.uri, role=me.role)
        self._peer = Party(id=peer.uri, role=peer.role)
        self._binding, self._offer = binding, offer
        self._salt = bytes.fromhex(offer.salt)
        self._blobs: Blobs | None = None
        self._messages = {"in": 0, "out": 0}
        self._wire_bytes = {"in": 0, "out": 0}
        self._denied = 0

    def begin(self, *, software: str, vocabulary: int | None) -> None:
        """The conversation's terms, after word of another policy than the run's last one."""
        before = self._log.policy_of(self._offer.run)
        if before not in {None, self._policy_digest}:
            self._log.append(
                PolicyChange(run=self._offer.run, before=before, policy=self._policy_digest)
            )
        self._log.append(
            RunOpen.of(
                self._offer,
                software=software,
                me=self._me,
                peer=self._peer,
                binding=self._binding,
                log_key=self._log.verifier_key,
                policy_text=self._policy.canonical.decode(),
                vocabulary=vocabulary,
            )
        )

    def enter(
        self,
        frame: Frame,
        *,
        facts: Facts,
        rule: Rule,
        parts: tuple[PartShape, ...],
        dp: Dp | None = None,
        keep: bool = False,
        error: float | None = None,
    ) -> None:
        """A message that a rule allowed. dp: the noise in it. keep: seal its frame beside the log.
        error: what its codec lost.
        """
        meta = frame.meta
        step = meta if isinstance(meta, StepTensor) else None
        commit = hmac.digest(self._salt, frame.raw, "sha256").hex()
        self._log.append(
            Payload(
                run=self._offer.run,
                direction=facts.direction,
                me=self._me.id,
                peer=self._peer.id,
                peer_role=self._peer.role,
                binding=self._binding,
                message=frame.seq,
                reply_to=step.reply_to if step else 0,
                step=meta.index if isinstance(meta, Ids) else getattr(meta, "step", None),
                micro_batch=step.micro_batch if step else None,
                phase=meta.phase if isinstance(meta, StepTensor | Ids | Want) else "",
                kind=frame.kind,
                schema=f"{frame.kind}/{PROTOCOL}",
                codec=facts.codec,
                rows=facts.rows,
                columns=facts.columns,
                examples=facts.examples,
                longest=facts.longest,
                side=said(meta),
                parts=parts,
                wire_bytes=facts.wire_bytes,
                commit=commit,
                blob=self._keep(frame) if keep else "withheld",
                policy=self._policy_digest,
                rules=(rule.id,),
                dp=dp,
                error=msgspec.UNSET if error is None else error,
            )
        )
        self.witness.logged(facts.direction, commit)
        self._messages[facts.direction] += 1
        self._wire_bytes[facts.direction] += facts.wire_bytes

    def deny(
        self, kind: Kind, *, direction: Direction, parts: tuple[PartShape, ...], rule: str
    ) -> None:
        """A message that was stopped, by its form."""
        self._denied += 1
        self._log.append(
            Denied(
                run=self._offer.run,
                direction=direction,
                peer=self._peer.id,
                kind=kind,
                rule=rule,
                policy=self._policy_digest,
                parts=parts,
            )
        )

    def head(self) -> HopHead:
        """The log's head, signed now, over all of this conversation so far, for the record in another log."""
        head = self._log.checkpoint()
        return HopHead(
            run=self._offer.run,
            conversation=self._offer.conversation,
            neighbour=self._peer.id,
            key=self._log.verifier_key,
            size=head.size,
            root=head.root.hex(),
        )

    def vouch(self, hop: "Account") -> None:
        """Put the head of the log of another conversation on record in ours."""
        self._log.append(hop.head())

    def close(self, outcome: Outcome) -> None:
        """The conversation's totals, and the log's head over all of it."""
        self._log.append(
            RunClose(
                run=self._offer.run,
                outcome=outcome,
                messages_out=self._messages["out"],
                messages_in=self._messages["in"],
                bytes_out=self._wire_bytes["out"],
                bytes_in=self._wire_bytes["in"],
                denied=self._denied,
            )
        )
        self._log.checkpoint()

    def _keep(self, frame: Frame) -> str:
        if self._blobs is None:
            self._blobs = Blobs.open(self._log.folder, create=True)
        return self._blobs.keep(frame.raw)
