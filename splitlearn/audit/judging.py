"""What the records of one log have to say to each other, in the order in which they stand.

Conversations, numbers, policy, totals, redactions. Never reads a file: lines and heads are `verify`'s,
what lies beside them is `evidence`'s. What peers signed is `vouching`'s.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

from splitlearn.audit.findings import Exit, Findings
from splitlearn.audit.records import (
    Denied,
    Gap,
    HopHead,
    Leakage,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Record,
    Redaction,
    RunClose,
    RunOpen,
)
from splitlearn.audit.vouching import Talk, Vouching
from splitlearn.errors import SplitLearnError
from splitlearn.wire.frames import BEARS_TENSORS

__all__ = ["Judge", "JudgeOf", "Judging"]

# Derives a payload's verdict again: None, or why it is not the one that was recorded. Called with the
# payloads of a run in order, so it can add up budgets.
Judge: TypeAlias = Callable[[Payload], str | None]
# Makes one from the text of a policy and what its rules had let through in the run before, in bytes.
JudgeOf: TypeAlias = Callable[[str, Mapping[str, int]], Judge]


class Judging:
    """Takes the records of a log one by one and notes what does not fit."""

    def __init__(
        self,
        findings: Findings,
        *,
        key: str | None,
        peer_keys: Mapping[str, str],
        judge_of: JudgeOf | None,
    ) -> None:
        """key: of this log. peer_keys: those that were told by the peers, by the name in them."""
        self.talks: dict[str, Talk] = {}
        self.vouching = Vouching(findings, talks=self.talks, peer_keys=peer_keys)
        self.bytes_by_kind: Counter[str] = Counter()
        self.messages_by_kind: Counter[str] = Counter()
        self.blobs: dict[int, str] = {}
        self.redacted: dict[int, int] = {}
        self.hops: list[tuple[int, HopHead]] = []
        self._findings = findings
        self._key = key
        self._judge_of = judge_of
        self._judges: dict[tuple[str, str], Judge | None] = {}
        self._spent: dict[str, Counter[str]] = {}
        self._policies: dict[str, str] = {}
        self._changes: dict[str, PolicyChange] = {}
        self._talk: Talk | None = None
        self._judge: Judge | None = None

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs, in the order of their beginning."""
        return tuple(dict.fromkeys(talk.opened.run for talk in self.talks.values()))

    def take(self, record: Record, *, index: int) -> None:
        """The record of line `index`."""
        match record:
            case Payload():
                self._payload(record, index=index)
            case RunOpen():
                self._open(record, index=index)
            case Receipt():
                self.vouching.receipt(record, index=index)
            case PeerCheckpoint():
                self.vouching.peer_head(record, index=index)
            case RunClose():
                self._close(record, index=index)
            case _:
                self._rare(record, index=index)

    def finish(self) -> None:
        """What can be said only at the end."""
        note = self._findings.note
        if self._talk is not None:
            note(
                Exit.CLEAN,
                "open",
                f"run {self._talk.opened.run} was not closed: it is under way or was interrupted",
            )
        self.vouching.finish()

    def _rare(self, record: Record, *, index: int) -> None:
        note = self._findings.note
        match record:
            case Gap():
                self._talk = None
                note(
                    Exit.CLEAN,
                    "gap",
                    "the process before had ended by surprise; "
                    f"{record.torn_bytes} bytes of an unfinished line were dropped",
                    record=index,
                )
            case Denied():
                if self._talk is not None:
                    self._talk.denied += 1
                note(
                    Exit.POLICY,
                    "denied",
                    f"{record.direction} {record.kind} was stopped by rule {record.rule}",
                    record=index,
                )
            case PolicyChange():
                self._changes[record.run] = record
            case HopHead():
                self.hops.append((index, record))
            case Redaction():
                self._redaction(record, index=index)
            case Leakage():
                self._leakage(record, index=index)
            case _:  # a checkpoint's root is held against the tree
                pass

    def _open(self, record: RunOpen, *, index: int) -> None:
        note = self._findings.note
        if self._talk is not None:
            note(
                Exit.CLEAN,
                "reopened",
                f"run {self._talk.opened.run} began a new conversation without closing the old",
                record=index,
            )
        if record.conversation in self.talks:
            note(
                Exit.INTEGRITY,
                "conversation",
                "it has the number of a conversation that stands in the log already",
                record=index,
            )
        if hashlib.sha256(record.policy_text.encode()).hexdigest() != record.policy:
            note(
                Exit.INTEGRITY,
                "policy",
                "its digest is not that of the policy's text",
                record=index,
            )
        if self._key is not None and record.log_key != self._key:
            note(Exit.INTEGRITY, "key", f"the run names {record.log_key} as its key", record=index)
        self._policy(record, index=index)
        self._talk = self.talks[record.conversation] = Talk(record, index)
        self._judge = self._judge_for(record, index=index)

    def _policy(self, record: RunOpen, *, index: int) -> None:
        """A run goes by one policy, but for changes that are announced."""
        before = self._policies.get(record.run)
        change = self._changes.pop(record.run, None)
        self._policies[record.run] = record.policy
        if change is not None and (change.before, change.policy) == (before, record.policy):
            self._findings.note(
                Exit.CLEAN,
                "policy-change",
                f"run {record.run} goes on under policy {record.policy[:16]}... in place of "
                f"{change.before[:16]}...",
                record=index,
            )
        elif before not in {None, record.policy} or change is not None:
            self._findings.note(
                Exit.POLICY,
                "policy-change",
                f"run {record.run} goes by policy {record.policy[:16]}..., which is not "
                f"what it went by before or was announced to go by",
                record=index,
            )

    def _payload(self, record: Payload, *, index: int) -> None:
        direction, wire_bytes = record.direction, record.wire_bytes
        kind = f"{direction} {record.kind}"
        self.bytes_by_kind[kind] += wire_bytes
        self.messages_by_kind[kind] += 1
        if record.blob != "withheld":
            self.blobs[index] = record.blob
        talk = self._talk
        if talk is None or (record.run, record.peer) != (talk.opened.run, talk.opened.peer.id):
            self._findings.note(
                Exit.INTEGRITY,
                "outside",
                f"a message of run {record.run} with {record.peer} stands outside of any such run",
                record=index,
            )
            return
        if record.message != talk.last[direction] + 1:
            self._findings.note(
                Exit.INTEGRITY,
                "sequence",
                f"message {record.message} {direction} follows "
                f"{talk.last[direction]}: one is missing or stands twice",
                record=index,
            )
        talk.last[direction] = record.message
        talk.messages[direction] += 1
        talk.wire_bytes[direction] += wire_bytes
        if direction == "out":
            talk.sent.add(record.commit)
            if record.kind in BEARS_TENSORS:
                talk.tensors.append(record.message)
        spent = self._spent[record.run]
        for rule in record.rules:
            spent[rule] += wire_bytes
        if record.policy != talk.opened.policy:
            self._findings.note(
                Exit.POLICY, "policy", "judged under another policy than the run's", record=index
            )
            return
        objection = self._judge(record) if self._judge else None
        if objection:
            self._findings.note(Exit.POLICY, "verdict", objection, record=index)

    def _judge_for(self, opened: RunOpen, *, index: int) -> Judge | None:
        """One judge for all conversations of a run, because its budgets run on after a restart."""
        spent = self._spent.setdefault(opened.run, Counter())
        if self._judge_of is None:
            return None
        key = (opened.run, opened.policy)
        if key not in self._judges:
            try:
                self._judges[key] = self._judge_of(opened.policy_text, dict(spent))
            except SplitLearnError as error:
                self._judges[key] = None
                self._findings.note(Exit.UNCHECKABLE, "policy", str(error), record=index)
        return self._judges[key]

    def _redaction(self, record: Redaction, *, index: int) -> None:
        if self.blobs.get(record.record) != record.blob:
            self._findings.note(
                Exit.INTEGRITY,
                "redaction",
                f"record {record.record} has no sealed frame {record.blob[:16]}...",
                record=index,
            )
            return
        self.redacted[record.record] = index
        self._findings.note(
            Exit.CLEAN,
            "redacted",
            f"the sealed frame of record {record.record} was destroyed ({record.why}); "
            "its record stands",
            record=index,
        )

    def _leakage(self, record: Leakage, *, index: int) -> None:
        for what, found, limit, by in (
            ("tokens", record.tokens, record.tokens_limit, record.tokens_by),
            ("labels", record.labels, record.labels_limit, record.labels_by),
        ):
            if found is not None and limit is not None and found > limit:
                self._findings.note(
                    Exit.POLICY,
                    "leakage",
                    f"{record.at}: attack {by} got {found:.3f} of the {what}; the policy's limit is "
                    f"{limit:.3f}",
                    record=index,
                )

    def _close(self, record: RunClose, *, index: int) -> None:
        talk, self._talk = self._talk, None
        counted = talk and (
            talk.messages["out"],
            talk.messages["in"],
            talk.wire_bytes["out"],
            talk.wire_bytes["in"],
            talk.denied,
        )
        said = (
            record.messages_out,
            record.messages_in,
            record.bytes_out,
            record.bytes_in,
            record.denied,
        )
        if talk is None or record.run != talk.opened.run or counted != said:
            self._findings.note(
                Exit.INTEGRITY,
                "totals",
                f"run {record.run} was closed with totals {said} where its records come to {counted}",
                record=index,
            )
