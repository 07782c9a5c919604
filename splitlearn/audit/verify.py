"""Does a log add up? What a sceptic can tell from a log folder and a public key, and nothing else.

Reads only; needs neither torch nor the parties. Never stops at the first fault: it lists what it
finds, each with its record, and sums up as one exit code.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from splitlearn.audit.checkpoint import (
    Checkpoint,
    format_verifier_key,
    parse_verifier_key,
)
from splitlearn.audit.log import (
    CHECKPOINT_RECORDS,
    SEGMENTS,
    VERIFIER_KEY,
    read_heads,
    read_lines,
)
from splitlearn.audit.merkle import Tree
from splitlearn.audit.records import (
    Checkpointed,
    Denied,
    Gap,
    Payload,
    Record,
    RunClose,
    RunOpen,
    decode,
)
from splitlearn.errors import AuditError, SplitLearnError

__all__ = ["Exit", "Finding", "Judge", "Report", "verify"]


class Exit(IntEnum):
    """What the findings come to, and the exit code of `splitlearn audit verify`."""

    CLEAN = 0
    POLICY = 1
    USAGE = 2
    INTEGRITY = 3
    MISMATCH = 4  # kept for the reconciliation of two logs
    UNCHECKABLE = 5


# From the text of a policy, a function that derives a payload's verdict again: None, or why it is
# not the one that was recorded. Called with the payloads of a run in order, so it can add up budgets.
Judge: TypeAlias = Callable[[Payload], str | None]


@dataclass(frozen=True)
class Finding:
    """One thing that a reader should know. `exit` CLEAN: a remark. `record`: index of its line."""

    exit: Exit
    name: str
    sentence: str
    record: int | None = None


@dataclass(frozen=True)
class Report:
    """Outcome of `verify`.

    pinned: whether the key came from outside the folder; if not, whoever could rewrite the log could
    sign it anew. covered: records under the newest signed head. bytes_by_kind: whole frames, keyed
    `out activation`.
    """

    folder: Path
    origin: str
    pinned: bool
    records: int
    covered: int
    heads: int
    runs: tuple[str, ...]
    bytes_by_kind: dict[str, int]
    messages_by_kind: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def exit(self) -> Exit:
        """The gravest finding: a broken record before a missing one before a broken rule."""
        exits = {finding.exit for finding in self.findings}
        order = (Exit.INTEGRITY, Exit.MISMATCH, Exit.UNCHECKABLE, Exit.POLICY)
        return next((code for code in order if code in exits), Exit.CLEAN)

    @property
    def ok(self) -> bool:
        return self.exit is Exit.CLEAN


def verify(
    folder: Path,
    *,
    verifier_key: str | None = None,
    judge_of: Callable[[str], Judge] | None = None,
) -> Report:
    """Check a log: lines, tree, signed heads, the order of a run's records, policy, totals.

    verifier_key: the party's key as it was told to you by the party, `name+id+base64`; without it the
    one in the folder is used and the report says so. judge_of: makes a judge from a policy's text;
    raises SplitLearnError for a text that is no policy.

    Raises AuditError only for a `verifier_key` that is none.
    """
    reader = _Reader(folder, judge_of=judge_of)
    key = _key(folder, told=verifier_key, reader=reader)
    if reader.read(_heads(folder, key=key, reader=reader), key=key):
        reader.finish()
    return Report(
        folder=folder,
        origin="" if key is None else key[0],
        pinned=verifier_key is not None,
        records=reader.tree.size,
        covered=reader.covered,
        heads=reader.heads,
        runs=tuple(dict.fromkeys(reader.runs)),
        bytes_by_kind=dict(reader.bytes_by_kind),
        messages_by_kind=dict(reader.messages_by_kind),
        findings=tuple(reader.findings),
    )


@dataclass
class _Run:
    """A conversation under way in the log."""

    opened: RunOpen
    last: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0})
    messages: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)
    denied: int = 0


class _Reader:
    """Goes through the lines once and collects."""

    def __init__(self, folder: Path, *, judge_of: Callable[[str], Judge] | None) -> None:
        self.findings: list[Finding] = []
        self.tree = Tree()
        self.covered = 0
        self.heads = 0
        self.runs: list[str] = []
        self.bytes_by_kind: Counter[str] = Counter()
        self.messages_by_kind: Counter[str] = Counter()
        self._folder = folder
        self._key: str | None = None
        self._judge_of = judge_of
        self._judges: dict[tuple[str, str], Judge | None] = {}
        self._run: _Run | None = None

    def note(self, exit_code: Exit, name: str, sentence: str, *, record: int | None = None) -> None:
        self.findings.append(Finding(exit=exit_code, name=name, sentence=sentence, record=record))

    def read(self, heads: dict[int, Checkpoint], *, key: tuple[str, bytes] | None) -> bool:
        """Every line of the log against its heads; whether there was a line at all."""
        self._key = key and format_verifier_key(key[0], public_key=key[1])
        left = dict(heads)
        torn = False
        try:
            for line, whole in read_lines(self._folder):
                index = self.tree.size
                if torn:
                    self.note(
                        Exit.INTEGRITY, "line", "a line breaks off in the middle", record=index
                    )
                    break
                torn = not whole
                if torn:
                    self.note(
                        Exit.UNCHECKABLE,
                        "torn",
                        "the last line is unfinished: its process ended by surprise and has not "
                        "been started again on this log",
                        record=index,
                    )
                    continue
                self._line(line, index=index)
                self._head(left.pop(self.tree.size, None))
        except AuditError as error:
            self.note(Exit.UNCHECKABLE, "unreadable", str(error))
        for size in sorted(left):
            self.note(
                Exit.INTEGRITY,
                "dropped",
                f"a signed head counts {size} records and the log has {self.tree.size}: "
                "records were dropped from its end",
            )
        if not self.tree.size:
            self.note(Exit.UNCHECKABLE, "empty", f"there is no record in {self._folder / SEGMENTS}")
        return self.tree.size > 0

    def finish(self) -> None:
        """What can be said only at the end."""
        tail = self.tree.size - self.covered
        if tail:
            self.note(
                Exit.UNCHECKABLE,
                "uncovered",
                f"the last {tail} records stand under no signed head, so they could have been "
                f"changed; a running party signs at least every {CHECKPOINT_RECORDS} records",
            )
        if self._run is not None:
            self.note(
                Exit.CLEAN,
                "open",
                f"run {self._run.opened.run} was not closed: it is under way or was interrupted",
            )

    def _line(self, line: bytes, *, index: int) -> None:
        head = self.tree.root() if b'"checkpoint"' in line[:32] else b""
        self.tree.append(line)
        try:
            record = decode(line)
        except AuditError as error:
            self.note(Exit.INTEGRITY, "line", str(error), record=index)
            return
        if record.seq != index:
            self.note(
                Exit.INTEGRITY,
                "order",
                f"the line says it is record {record.seq} and is the {index}th: lines were added, "
                "dropped or swapped",
                record=index,
            )
        if isinstance(record, Checkpointed) and record.root != head.hex():
            self.note(
                Exit.INTEGRITY, "root", "the records before are not those it names", record=index
            )
        self._record(record, index=index)

    def _head(self, head: Checkpoint | None) -> None:
        if head is None:
            return
        if head.root != self.tree.root():
            self.note(
                Exit.INTEGRITY,
                "head",
                f"the signed head of {head.size} records is not that of the lines: one was changed",
            )
            return
        self.covered = head.size
        self.heads += 1

    def _record(self, record: Record, *, index: int) -> None:
        match record:
            case RunOpen():
                if record.run not in self.runs:
                    self.runs.append(record.run)
                if self._run is not None:
                    self.note(
                        Exit.CLEAN,
                        "reopened",
                        f"run {self._run.opened.run} began a new conversation without closing the old",
                        record=index,
                    )
                self._run = _Run(record)
                self._open(record, index=index)
            case Gap():
                self._run = None
                self.note(
                    Exit.CLEAN,
                    "gap",
                    "the process before had ended by surprise; "
                    f"{record.torn_bytes} bytes of an unfinished line were dropped",
                    record=index,
                )
            case Payload():
                self._payload(record, index=index)
            case Denied():
                if self._run is not None:
                    self._run.denied += 1
                self.note(
                    Exit.POLICY,
                    "denied",
                    f"{record.direction} {record.kind} was stopped by rule {record.rule}",
                    record=index,
                )
            case RunClose():
                self._close(record, index=index)
            case _:  # a checkpoint's root was held against the tree already
                pass

    def _open(self, record: RunOpen, *, index: int) -> None:
        if hashlib.sha256(record.policy_text.encode()).hexdigest() != record.policy:
            self.note(
                Exit.INTEGRITY,
                "policy",
                "its digest is not that of the policy's text",
                record=index,
            )
        if self._key is not None and record.log_key != self._key:
            self.note(
                Exit.INTEGRITY, "key", f"the run names {record.log_key} as its key", record=index
            )

    def _payload(self, record: Payload, *, index: int) -> None:
        self.bytes_by_kind[f"{record.direction} {record.kind}"] += record.wire_bytes
        self.messages_by_kind[f"{record.direction} {record.kind}"] += 1
        run = self._run
        if run is None or (record.run, record.peer) != (run.opened.run, run.opened.peer.id):
            self.note(
                Exit.INTEGRITY,
                "outside",
                f"a message of run {record.run} with {record.peer} stands outside of any such run",
                record=index,
            )
            return
        if record.message != run.last[record.direction] + 1:
            self.note(
                Exit.INTEGRITY,
                "sequence",
                f"message {record.message} {record.direction} follows "
                f"{run.last[record.direction]}: one is missing or stands twice",
                record=index,
            )
        run.last[record.direction] = record.message
        run.messages[record.direction] += 1
        run.wire_bytes[record.direction] += record.wire_bytes
        if record.policy != run.opened.policy:
            self.note(
                Exit.POLICY, "policy", "judged under another policy than the run's", record=index
            )
            return
        judge = self._judge(run.opened, index=index)
        objection = judge(record) if judge else None
        if objection:
            self.note(Exit.POLICY, "verdict", objection, record=index)

    def _judge(self, opened: RunOpen, *, index: int) -> Judge | None:
        """One judge for all conversations of a run, because its budgets run on after a restart."""
        if self._judge_of is None:
            return None
        key = (opened.run, opened.policy)
        if key not in self._judges:
            try:
                self._judges[key] = self._judge_of(opened.policy_text)
            except SplitLearnError as error:
                self._judges[key] = None
                self.note(Exit.UNCHECKABLE, "policy", str(error), record=index)
        return self._judges[key]

    def _close(self, record: RunClose, *, index: int) -> None:
        run, self._run = self._run, None
        counted = run and (
            run.messages["out"],
            run.messages["in"],
            run.wire_bytes["out"],
            run.wire_bytes["in"],
            run.denied,
        )
        said = (
            record.messages_out,
            record.messages_in,
            record.bytes_out,
            record.bytes_in,
            record.denied,
        )
        if run is None or record.run != run.opened.run or counted != said:
            self.note(
                Exit.INTEGRITY,
                "totals",
                f"run {record.run} was closed with totals {said} where its records come to {counted}",
                record=index,
            )


def _key(folder: Path, *, told: str | None, reader: _Reader) -> tuple[str, bytes] | None:
    if told is not None:
        return parse_verifier_key(told)
    try:
        key = parse_verifier_key((folder / VERIFIER_KEY).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, AuditError):
        reader.note(
            Exit.UNCHECKABLE,
            "key",
            f"no key was given and there is none in {folder / VERIFIER_KEY}",
        )
        return None
    reader.note(
        Exit.CLEAN,
        "unpinned",
        "the key was taken from the folder itself; give the one that the party told you",
    )
    return key


def _heads(
    folder: Path, *, key: tuple[str, bytes] | None, reader: _Reader
) -> dict[int, Checkpoint]:
    heads = {}
    try:
        for size, note in read_heads(folder) if key else ():
            assert key is not None, "heads are read only with a key"
            try:
                head = Checkpoint.open(note, origin=key[0], public_key=key[1])
                if head.size != size:
                    raise AuditError(
                        f"its file is named after {size} records, it signs {head.size}"
                    )
                heads[size] = head
            except AuditError as error:
                reader.note(Exit.INTEGRITY, "head", f"signed head {size}: {error}")
    except AuditError as error:
        reader.note(Exit.UNCHECKABLE, "unreadable", str(error))
    return heads
