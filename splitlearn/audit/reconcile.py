"""Two logs of one run held against each other: every message that is in one has to be in the other.

A message is known by its conversation, its direction, turned round in the other log, and its number;
commit, length, kind and parts have to be the same. Each log is verified by itself first. Reads only.
Says of each difference whether an honest crash explains it; where it cannot, somebody's log is false.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from splitlearn.audit.entries import Direction
from splitlearn.audit.evidence import read_peers
from splitlearn.audit.findings import Exit, Findings, gravest
from splitlearn.audit.judging import JudgeOf
from splitlearn.audit.log import read_lines
from splitlearn.audit.matching import CLASSES, Conversed, Difference, Stream
from splitlearn.audit.merkle import Tree
from splitlearn.audit.records import (
    Gap,
    PartShape,
    Payload,
    PeerCheckpoint,
    Receipt,
    Record,
    RunClose,
    RunOpen,
    decode,
)
from splitlearn.audit.verify import Report, canonical_key, read_key, verify
from splitlearn.errors import AuditError

__all__ = ["CLASSES", "Difference", "Reconciliation", "reconcile"]


@dataclass(frozen=True)
class Reconciliation:
    """Outcome of `reconcile`. matched: messages that both logs have and agree on."""

    here: Report
    there: Report
    conversations: int
    matched: int
    differences: tuple[Difference, ...]

    @property
    def exit(self) -> Exit:
        """The gravest of both reports and all differences."""
        exits = [difference.exit for difference in self.differences]
        return gravest([*exits, self.here.exit, self.there.exit])

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each class."""
        found = Counter(difference.name for difference in self.differences)
        return {"matched": self.matched, **{name: found[name] for name in CLASSES}}


def reconcile(
    folder_a: Path,
    folder_b: Path,
    *,
    key_a: str | None = None,
    key_b: str | None = None,
    judge_of: JudgeOf | None = None,
) -> Reconciliation:
    """Hold the log in `folder_a` ("here") against that of its peer in `folder_b` ("there").

    key_a, key_b: the parties' verifier keys as they told them to you; each also pins what the other
    log says of it. judge_of: as in `verify`. Raises AuditError only for a key that is none.
    """
    sides = []
    for folder, key, peer_key in ((folder_a, key_a, key_b), (folder_b, key_b, key_a)):
        peer_keys = () if peer_key is None else (peer_key,)
        report = verify(folder, verifier_key=key, peer_keys=peer_keys, judge_of=judge_of)
        sides.append(_read(folder, report=report, told=key))
    here, there = sides
    joined = _joined(here, there)
    found: list[Difference] = []
    matched = 0
    for conversation in joined:
        ours, theirs = here.talks.get(conversation), there.talks.get(conversation)
        found += _beginnings(ours, theirs)
        for direction, turned in _DIRECTIONS:
            stream = Stream(
                ours or Conversed(None, None),
                theirs or Conversed(None, None),
                direction=direction,
                turned=turned,
            )
            found += stream.differences()
            matched += stream.matched
    found += _forks(here, there, joined=joined, holder_is_here=True)
    found += _forks(there, here, joined=joined, holder_is_here=False)
    if not joined:
        found.append(
            Difference(
                "nothing_in_common",
                f"log {folder_a} of {here.names} and log {folder_b} of {there.names} have no "
                "conversation in common; are they of one run?",
            )
        )
    return Reconciliation(here.report, there.report, len(joined), matched, tuple(found))


_DIRECTIONS: tuple[tuple[Direction, Direction], ...] = (("out", "in"), ("in", "out"))


@dataclass
class _Side:
    """One log: its conversations, the tree over its lines, and what it holds of its peers' logs."""

    folder: Path
    report: Report
    key: str | None
    talks: dict[str, Conversed] = field(default_factory=dict)
    tree: Tree = field(default_factory=Tree)
    keys: list[tuple[int, Receipt | PeerCheckpoint]] = field(default_factory=list)

    @property
    def names(self) -> str:
        """Whose log it is, for a sentence."""
        return " and ".join(sorted(self.owners)) or "nobody"

    @property
    def owners(self) -> set[str]:
        return {talk.opened.me.id for talk in self.talks.values() if talk.opened}


def _read(folder: Path, *, report: Report, told: str | None) -> _Side:
    """Every record that can be read; `report` has said already which cannot."""
    side = _Side(folder, report, read_key(folder) if told is None else canonical_key(told))
    talk: Conversed | None = None
    shapes: dict[tuple[PartShape, ...], tuple[PartShape, ...]] = {}
    for index, record in _tolerantly(folder, tree=side.tree):
        match record:
            case Payload() if talk is not None:
                parts = shapes.setdefault(record.parts, record.parts)
                talk.add(record, record=index, parts=parts)
            case RunOpen():
                talk = side.talks[record.conversation] = Conversed(record, index)
            case RunClose() if talk is not None:
                talk.closed = record.outcome
                talk = None
            case Gap() if talk is not None:
                talk.crashed = True
                talk = None
            case Receipt() | PeerCheckpoint():
                side.keys.append((index, record))
                if isinstance(record, Receipt) and record.conversation in side.talks:
                    known = side.talks[record.conversation]
                    known.receipted = max(known.receipted, record.last)
            case _:
                pass
    if talk is not None:
        talk.crashed = True
    return side


def _tolerantly(folder: Path, *, tree: Tree) -> Iterator[tuple[int, Record]]:
    try:
        for index, (line, whole) in enumerate(read_lines(folder)):
            if not whole:
                return
            tree.append(line)
            try:
                yield index, decode(line)
            except AuditError:
                continue
    except AuditError:  # a file is missing: verify said so
        return


def _joined(here: _Side, there: _Side) -> list[str]:
    """Conversations that both parties should have, in the order of the first log, then the second."""
    if not set(here.report.runs) & set(there.report.runs):
        return []
    joined = [
        conversation
        for conversation, talk in here.talks.items()
        if talk.opened is not None and talk.opened.peer.id in there.owners
    ]
    joined += [
        conversation
        for conversation, talk in there.talks.items()
        if talk.opened is not None
        and talk.opened.peer.id in here.owners
        and conversation not in here.talks
    ]
    return joined


# What a conversation is about, the same for both parties. Policy, certificate and software are not.
_AGREED = (
    "run",
    "job",
    "purpose",
    "mode",
    "model",
    "layers",
    "bases",
    "cut",
    "bottlenecks",
    "codecs",
    "codec_bases",
    "codec_stages",
)


def _beginnings(ours: Conversed | None, theirs: Conversed | None) -> list[Difference]:
    if ours is None or theirs is None or ours.opened is None or theirs.opened is None:
        return []
    one, two = ours.opened, theirs.opened
    unlike = [name for name in _AGREED if getattr(one, name) != getattr(two, name)]
    if (one.me, one.peer) != (two.peer, two.me):
        unlike.append("parties")
    if not unlike:
        return []
    return [
        Difference(
            "digest_mismatch",
            f"the conversation begins with another {', '.join(unlike)}",
            here=ours.record,
            there=theirs.record,
        )
    ]


def _forks(
    holder: _Side, owner: _Side, *, joined: Sequence[str], holder_is_here: bool
) -> Iterator[Difference]:
    """Heads of `owner`'s log that `holder` keeps and that are not those of its lines."""
    ours = set(joined)
    whose = owner.names

    def fork(sentence: str, *, held: int | None, size: int) -> Difference:
        owned = size - 1 if 0 < size <= owner.tree.size else None
        here, there = (held, owned) if holder_is_here else (owned, held)
        return Difference("fork", sentence, here=here, there=there)

    told: set[tuple[int, bytes]] = set()
    strange: set[str] = set()
    for index, record in holder.keys:
        if record.conversation not in ours or record.key in strange:
            continue
        if owner.key is not None and record.key != owner.key:
            strange.add(record.key)
            yield fork(
                f"{whose} signed under another key than that of the log that it handed over",
                held=index,
                size=0,
            )
        elif isinstance(record, PeerCheckpoint):
            told.add((record.size, bytes.fromhex(record.root)))
            if not _holds(owner.tree, record.size, bytes.fromhex(record.root)):
                yield fork(
                    f"{whose} showed a head of {record.size} records that is not of the log that "
                    "it handed over: it has two histories",
                    held=index,
                    size=record.size,
                )
    # A head that was kept in the moment before a crash has no record, and its folder tells whose it is.
    for place in read_peers(holder.folder, key=None, findings=Findings()):
        heads = {(size, head.root) for size, head in place.heads.items()}
        if not heads & told:
            continue
        for size, root in sorted(heads - told):
            if not _holds(owner.tree, size, root):
                yield fork(
                    f"{place.folder} holds a head of {size} records that is not of the log that "
                    f"{whose} handed over: it has two histories",
                    held=None,
                    size=size,
                )


def _holds(tree: Tree, size: int, root: bytes) -> bool:
    return size <= tree.size and tree.root_at(size) == root
