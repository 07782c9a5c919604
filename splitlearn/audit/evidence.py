"""What lies beside a log's lines: its signed heads, the heads of its peers, and its sealed frames.

    checkpoints/N.note          a head of this log, countersigned by a peer
    peers/NAME-LOG/N.note       a head of a peer's log, countersigned by this log's owner
    peers/NAME-LOG/N.refused.note   a head that the peer showed and that did not extend its last one
    blobs/NAME.sealed, .key     a sealed frame and its wrapped key

Says which of these are what they should be. Never reads a line of the log.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from splitlearn.audit.blobs import BLOBS, key_path, sealed_path
from splitlearn.audit.checkpoint import (
    MAX_NOTE_BYTES,
    Checkpoint,
    open_note,
    parse_verifier_key,
)
from splitlearn.audit.findings import Exit, Findings
from splitlearn.audit.log import VERIFIER_KEY, read_heads
from splitlearn.audit.witness import PEERS
from splitlearn.errors import AuditError

__all__ = ["Head", "PeerHeads", "check_blob", "read_own_heads", "read_peers", "signed_by"]


@dataclass(frozen=True)
class Head:
    """A head and the note that it was read from, countersignatures included."""

    checkpoint: Checkpoint
    note: str


@dataclass(frozen=True)
class PeerHeads:
    """One folder under peers/: the heads of one log of a peer that verify under `key`.

    faults: of the notes that do not, by size. refused: sizes of heads that did not extend the last.
    """

    folder: Path
    key: str
    heads: dict[int, Checkpoint] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    refused: tuple[int, ...] = ()


def read_own_heads(
    folder: Path, *, key: tuple[str, bytes] | None, findings: Findings
) -> dict[int, Head]:
    """The heads of the log in `folder` that verify under `key`, its name and public key, by size."""
    heads: dict[int, Head] = {}
    if key is None:
        return heads
    try:
        for size, note in read_heads(folder):
            try:
                head = Checkpoint.open(note, origin=key[0], public_key=key[1])
                if head.size != size:
                    raise AuditError(
                        f"its file is named after {size} records, it signs {head.size}"
                    )
                heads[size] = Head(head, note)
            except AuditError as error:
                findings.note(
                    Exit.INTEGRITY, "head", f"signed head {size}: {error}", record=size - 1
                )
    except AuditError as error:
        findings.note(Exit.UNCHECKABLE, "unreadable", str(error))
    return heads


def read_peers(
    folder: Path, *, key: tuple[str, bytes] | None, findings: Findings
) -> tuple[PeerHeads, ...]:
    """What lies under peers/; `key` of this log has to have countersigned each head there."""
    found = []
    for place in sorted((folder / PEERS).glob("*")):
        if not any(place.glob("*.note")):
            continue
        try:
            told = _read_text(place / VERIFIER_KEY).strip()
            parse_verifier_key(told)
        except AuditError as error:
            findings.note(Exit.INTEGRITY, "peer-key", f"{place / VERIFIER_KEY}: {error}")
            continue
        found.append(_read_peer(place, told, key=key))
    return tuple(found)


def signed_by(head: Head, *, key: str) -> bool:
    """Whether the owner of verifier key `key` countersigned `head`.

    Raises AuditError where there is a signature in its name that is not its own.
    """
    name, public_key = parse_verifier_key(key)
    if f" {name} " not in head.note:
        return False
    open_note(head.note, name=name, public_key=public_key)
    return True


def check_blob(
    folder: Path, name: str, *, record: int, redacted: int | None, findings: Findings
) -> None:
    """Whether the sealed frame of `record` is there and whole; `redacted`: the record that says not.

    Where no sealed frame was handed over at all, there is nothing to check: the record stands.
    """
    if not (folder / BLOBS).is_dir():
        return
    sealed, key = sealed_path(folder, name), key_path(folder, name)
    if redacted is not None:
        if key.exists():
            findings.note(
                Exit.POLICY,
                "redaction",
                f"record {record} is said to be redacted and the key of its frame still lies in "
                f"{key}; run splitlearn audit redact again",
                record=redacted,
            )
        return
    try:
        with sealed.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        findings.note(
            Exit.INTEGRITY,
            "blob",
            f"its sealed frame cannot be read and no record says that it was redacted: "
            f"{sealed.name}: {error.strerror}",
            record=record,
        )
        return
    if digest != name:
        findings.note(
            Exit.INTEGRITY, "blob", f"its sealed frame {sealed.name} was changed", record=record
        )
    if not key.exists():
        findings.note(
            Exit.UNCHECKABLE,
            "blob",
            "the key of its sealed frame is gone and no record says that it was redacted; "
            "run splitlearn audit redact to put that on record",
            record=record,
        )


def _read_peer(place: Path, told: str, *, key: tuple[str, bytes] | None) -> PeerHeads:
    name, public_key = parse_verifier_key(told)
    heads: dict[int, Checkpoint] = {}
    faults: dict[int, str] = {}
    refused = []
    for path in sorted(place.glob("*.note")):
        size, _, rest = path.name.partition(".")
        if not (size.isascii() and size.isdecimal() and len(size) <= _MAX_DIGITS):
            continue
        if rest == "refused.note":
            refused.append(int(size))
            continue
        try:
            note = _read_text(path)
            head = Checkpoint.open(note, origin=name, public_key=public_key)
            if f"{head.size}.{rest}" != f"{size}.note":
                raise AuditError(f"its file is named after {size} records, it signs {head.size}")
            if key is not None:
                open_note(note, name=key[0], public_key=key[1])
            heads[int(size)] = head
        except AuditError as error:
            faults[int(size)] = str(error)
    return PeerHeads(place, told, heads, faults, tuple(sorted(refused)))


# Digits of the largest size that is exact in every language, 2**53.
_MAX_DIGITS = 16


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_NOTE_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"cannot be read: {error}") from None
