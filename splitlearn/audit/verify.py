"""Whether a log is what was written at the time: every check that needs the log, a key, and nothing else.

Reads only; needs neither torch nor the parties. Never stops at the first fault: it lists what it
finds, each with its record, and sums up as one exit code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitlearn.audit.checkpoint import format_verifier_key, parse_verifier_key
from splitlearn.audit.evidence import (
    Head,
    PeerHeads,
    check_blob,
    read_own_heads,
    read_peers,
    signed_by,
)
from splitlearn.audit.findings import Exit, Finding, Findings, gravest
from splitlearn.audit.hops import check_hops
from splitlearn.audit.judging import Judge, JudgeOf, Judging
from splitlearn.audit.log import CHECKPOINT_RECORDS, SEGMENTS, VERIFIER_KEY, read_lines
from splitlearn.audit.merkle import Tree
from splitlearn.audit.records import Checkpointed, decode
from splitlearn.audit.vouching import Vouching
from splitlearn.errors import AuditError

__all__ = ["Exit", "Finding", "Judge", "JudgeOf", "Report", "canonical_key", "read_key", "verify"]


@dataclass(frozen=True)
class Report:
    """Outcome of `verify`.

    pinned: whether the key came from outside the folder; if not, whoever could rewrite the log could
    sign it anew. covered: records under the newest signed head. countersigned: by the name in its
    key, how many records each peer countersigned: its owner cannot rewrite these alone. receipts:
    how many stand in the log; unreceipted: messages sent that are under none. bytes_by_kind: whole
    frames, keyed `out activation`. kept, redacted: sealed frames.
    """

    folder: Path
    origin: str
    pinned: bool
    records: int
    covered: int
    heads: int
    runs: tuple[str, ...]
    countersigned: Mapping[str, int]
    receipts: int
    unreceipted: int
    kept: int
    redacted: int
    bytes_by_kind: Mapping[str, int]
    messages_by_kind: Mapping[str, int]
    findings: tuple[Finding, ...]

    @property
    def exit(self) -> Exit:
        """The gravest finding: a broken record before a missing one before a broken rule."""
        return gravest(finding.exit for finding in self.findings)

    @property
    def ok(self) -> bool:
        return self.exit is Exit.CLEAN


def verify(
    folder: Path,
    *,
    verifier_key: str | None = None,
    peer_keys: Sequence[str] = (),
    judge_of: JudgeOf | None = None,
) -> Report:
    """Check a log: lines, tree, heads, receipts, the order of a run's records, policy, totals.

    verifier_key: the party's key as it was told to you by the party, `name+id+base64`; without it the
    one in the folder is used and the report says so. peer_keys: those of its peers, as they told you;
    without them those in the log are used. judge_of: makes a judge from a policy's text; raises
    SplitLearnError for a text that is no policy.

    Raises AuditError only for a key that is none.
    """
    findings = Findings()
    key = _key(folder, told=verifier_key, findings=findings)
    word = key and format_verifier_key(key[0], public_key=key[1])
    told = {parse_verifier_key(peer)[0]: canonical_key(peer) for peer in peer_keys}
    judging = Judging(findings, key=word, peer_keys=told, judge_of=judge_of)
    heads = read_own_heads(folder, key=key, findings=findings)
    lines = _Lines(folder, heads=heads, findings=findings, judging=judging)
    lines.read()
    countersigned: dict[str, int] = {}
    if lines.tree.size:
        lines.finish()
        judging.finish()
        countersigned = _countersigned(heads, vouching=judging.vouching, findings=findings)
        peers = read_peers(folder, key=key, findings=findings)
        _check_peers(peers, vouching=judging.vouching, findings=findings)
        check_hops(folder, judging.hops, key=word, findings=findings)
        for record, name in judging.blobs.items():
            redacted = judging.redacted.get(record)
            check_blob(folder, name, record=record, redacted=redacted, findings=findings)
    return Report(
        folder=folder,
        origin="" if key is None else key[0],
        pinned=verifier_key is not None,
        records=lines.tree.size,
        covered=lines.covered,
        heads=lines.heads,
        runs=judging.runs,
        countersigned=countersigned,
        receipts=judging.vouching.receipts,
        unreceipted=sum(len(talk.sent) - talk.receipted for talk in judging.talks.values()),
        kept=len(judging.blobs),
        redacted=len(judging.redacted),
        bytes_by_kind=dict(judging.bytes_by_kind),
        messages_by_kind=dict(judging.messages_by_kind),
        findings=tuple(findings),
    )


class _Lines:
    """Goes through the lines once: the tree over them against the heads, each record to the judge."""

    def __init__(
        self, folder: Path, *, heads: Mapping[int, Head], findings: Findings, judging: Judging
    ) -> None:
        self.tree = Tree()
        self.covered = 0
        self.heads = 0
        self._folder = folder
        self._left = dict(heads)
        self._expected = 0
        self._good: int | None = 0
        self._false: list[int] = []
        self._findings = findings
        self._judging = judging

    def read(self) -> None:
        """Every line of the log against its heads."""
        note = self._findings.note
        torn = False
        try:
            for line, whole in read_lines(self._folder):
                index = self.tree.size
                if torn:
                    note(Exit.INTEGRITY, "line", "a line breaks off in the middle", record=index)
                    break
                torn = not whole
                if torn:
                    note(
                        Exit.UNCHECKABLE,
                        "torn",
                        "the last line is unfinished: its process ended by surprise and has not "
                        "been started again on this log",
                        record=index,
                    )
                    continue
                self._line(line, index=index)
                if index + 1 in self._left:
                    self._head(self._left.pop(index + 1))
        except AuditError as error:
            note(Exit.UNCHECKABLE, "unreadable", str(error))
        for size in sorted(self._left):
            note(
                Exit.INTEGRITY,
                "dropped",
                f"a signed head counts {size} records and the log has {self.tree.size}: "
                "records were dropped from its end, this one first",
                record=self.tree.size,
            )
        if not self.tree.size:
            note(Exit.UNCHECKABLE, "empty", f"there is no record in {self._folder / SEGMENTS}")

    def finish(self) -> None:
        """What can be said only at the end."""
        note = self._findings.note
        for size in self._false:
            if size < self.covered:  # a later head is that of the lines, so the lines are right
                note(
                    Exit.INTEGRITY,
                    "head",
                    f"the signed head of {size} records is not that of the lines, and a later one is",
                    record=size - 1,
                )
                continue
            note(
                Exit.INTEGRITY,
                "head",
                f"the signed head of {size} records is not that of the lines: one of records "
                f"{self.covered} to {size - 1} was changed",
                record=self.covered,
            )
            return
        tail = self.tree.size - self.covered
        if tail:
            note(
                Exit.UNCHECKABLE,
                "uncovered",
                f"the last {tail} records stand under no signed head, so they could have been "
                f"changed; a running party signs at least every {CHECKPOINT_RECORDS} records",
            )

    def _line(self, line: bytes, *, index: int) -> None:
        expected, self._expected = self._expected, self._expected + 1
        try:
            record = decode(line)
        except AuditError as error:
            self.tree.append(line)
            self._findings.note(Exit.INTEGRITY, "line", str(error), record=index)
            return
        if record.seq != expected:  # told once where it begins, not again for every line after
            self._expected = record.seq + 1
            self._findings.note(
                Exit.INTEGRITY,
                "order",
                f"line {index} says that it is record {record.seq}, where record {expected} belongs: "
                "lines were added, dropped or swapped",
                record=index,
            )
        if isinstance(record, Checkpointed):
            self._marker(record, index=index)
        self.tree.append(line)
        self._judging.take(record, index=index)

    def _marker(self, marker: Checkpointed, *, index: int) -> None:
        """The log names its own root; once it does not, no later marker can."""
        if self._good is None:
            return
        if marker.root == self.tree.root().hex():
            self._good = index
            return
        self._findings.note(
            Exit.INTEGRITY,
            "root",
            f"records {self._good} to {index - 1} are not those that this record names: one was "
            "changed",
            record=index,
        )
        self._good = None

    def _head(self, head: Head) -> None:
        if head.checkpoint.root != self.tree.root():
            self._false.append(head.checkpoint.size)
            return
        self.covered = head.checkpoint.size
        self.heads += 1


def _countersigned(
    heads: Mapping[int, Head], *, vouching: Vouching, findings: Findings
) -> dict[str, int]:
    """How many records each peer countersigned; every head that a record says it did, did it."""
    found: dict[str, int] = {}
    bearing: set[tuple[int, str]] = set()
    for size, head in heads.items():
        for key in vouching.keys.values():
            try:
                if signed_by(head, key=key):
                    bearing.add((size, key))
                    name = parse_verifier_key(key)[0]
                    found[name] = max(size, found.get(name, 0))
            except AuditError as error:
                findings.note(
                    Exit.INTEGRITY,
                    "countersignature",
                    f"signed head {size}: {error}",
                    record=size - 1,
                )
    for index, record in vouching.peer_heads:
        if record.mine and (record.mine, record.key) not in bearing:
            findings.note(
                Exit.INTEGRITY,
                "countersignature",
                f"the peer countersigned the head of {record.mine} records, and there is no such "
                "head with its signature",
                record=index,
            )
    return found


def _check_peers(peers: Sequence[PeerHeads], *, vouching: Vouching, findings: Findings) -> None:
    """Every head of a peer that a record names lies under peers/ and is what the record says."""
    named: set[tuple[Path, int]] = set()
    for index, record in vouching.peer_heads:
        places = [place for place in peers if place.key == record.key]
        for place in places:
            head = place.heads.get(record.size)
            if head is not None and head.root.hex() == record.root:
                named.add((place.folder, record.size))
                break
        else:
            faults = [place.faults[record.size] for place in places if record.size in place.faults]
            named.update((place.folder, record.size) for place in places)
            why = faults[0] if faults else "it is not there, or not with that root"
            findings.note(
                Exit.INTEGRITY,
                "peer-head",
                f"the head of {record.size} records that {record.peer} showed, under peers/: {why}",
                record=index,
            )
    for place in peers:
        for size, fault in place.faults.items():
            if (place.folder, size) not in named:
                path = place.folder / f"{size}.note"
                findings.note(Exit.INTEGRITY, "peer-head", f"{path}: {fault}")
        for size in place.refused:
            findings.note(
                Exit.MISMATCH,
                "refused",
                f"{parse_verifier_key(place.key)[0]} showed a head of {size} records that does not "
                f"extend its last one: it rewrote its log; the proof lies in {place.folder}",
            )


def canonical_key(key: str) -> str:
    """`key` in its one spelling, without what surrounds it in a file. Raises AuditError."""
    name, public_key = parse_verifier_key(key)
    return format_verifier_key(name, public_key=public_key)


def read_key(folder: Path) -> str | None:
    """The verifier key that lies beside the log; None where there is none that can be read."""
    try:
        with (folder / VERIFIER_KEY).open("rb") as file:
            return canonical_key(file.read(_MAX_KEY_BYTES).decode())
    except (OSError, UnicodeDecodeError, AuditError):
        return None


def _key(folder: Path, *, told: str | None, findings: Findings) -> tuple[str, bytes] | None:
    if told is not None:
        return parse_verifier_key(told)
    key = read_key(folder)
    if key is None:
        findings.note(
            Exit.UNCHECKABLE,
            "key",
            f"no key was given and there is none in {folder / VERIFIER_KEY}",
        )
        return None
    findings.note(
        Exit.CLEAN,
        "unpinned",
        "the key was taken from the folder itself; give the one that the party told you",
    )
    return parse_verifier_key(key)


# A key takes about 150.
_MAX_KEY_BYTES = 4096
