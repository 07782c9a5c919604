"""The signed heads of a log as a report lists them: which are signed, by whom else, and the newest root.

Reads only the notes, never a line of the log. Says nothing about a head that does not verify: the
verdict does.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from splitlearn.audit import Checkpoint
from splitlearn.audit.checkpoint import open_note, parse_verifier_key
from splitlearn.audit.log import VERIFIER_KEY, read_heads
from splitlearn.errors import AuditError
from splitlearn.report.document import MAX_HEADS, Head, Heads, PeerHead

__all__ = ["key_of", "list_heads"]


def key_of(folder: Path, *, told: str | None) -> str:
    """The verifier key that the log is checked with, `told` or the folder's own; empty for none."""
    with suppress(OSError, UnicodeDecodeError, AuditError):
        text = told or (folder / VERIFIER_KEY).read_text(encoding="utf-8")
        parse_verifier_key(text)
        return text.strip()
    return ""


def list_heads(
    folder: Path, *, key: str, covered: int, records: int, peers: Sequence[PeerHead]
) -> tuple[Heads, str]:
    """The heads up to `records`, evenly thinned to MAX_HEADS, and the root of the head at `covered`."""
    heads, root = [], ""
    for head, note in _own(folder, key=key) if key else ():
        if head.size > records:
            continue
        if head.size == covered:
            root = head.root.hex()
        signers = tuple(peer.peer for peer in peers if _signed(note, key=peer.key))
        heads.append(Head(size=head.size, countersigned=signers))
    listed = tuple(heads[index] for index in _thinned(len(heads)))
    return Heads(total=len(heads), listed=listed, peers=tuple(peers)), root


def _own(folder: Path, *, key: str) -> Iterator[tuple[Checkpoint, str]]:
    name, public_key = parse_verifier_key(key)
    with suppress(AuditError):
        for size, note in read_heads(folder):
            with suppress(AuditError):
                head = Checkpoint.open(note, origin=name, public_key=public_key)
                if head.size == size:
                    yield head, note


def _signed(note: str, *, key: str) -> bool:
    try:
        name, public_key = parse_verifier_key(key)
        if f" {name} " not in note:
            return False
        open_note(note, name=name, public_key=public_key)
    except AuditError:
        return False
    return True


def _thinned(count: int) -> Iterator[int]:
    """At most MAX_HEADS of `count` indices, evenly spread, first and last among them."""
    if count <= MAX_HEADS:
        yield from range(count)
        return
    for step in range(MAX_HEADS):
        yield step * (count - 1) // (MAX_HEADS - 1)
