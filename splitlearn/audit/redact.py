"""Destroying one sealed frame on request, and saying so in the log. The record itself stays for ever."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit.blobs import Blobs, key_path
from splitlearn.audit.log import Log
from splitlearn.audit.reading import read_records
from splitlearn.audit.records import Payload, Redaction
from splitlearn.errors import ManifestError

__all__ = ["redact"]


def redact(
    folder: Path,
    record: int,
    *,
    why: Literal["request", "retention", "mistake"],
    origin: str,
    signer: Ed25519PrivateKey,
    clock: Callable[[], float] = time.time,
) -> str:
    """Destroy the sealed frame of record number `record` and log it under a fresh head; its name.

    The frame goes first: if the process ends between the two, verify tells of it and the same call
    again puts it on record. origin, signer: of the log, so only its owner can do this.

    Raises ManifestError: that record has no sealed frame, or it is destroyed already. AuditError: the
    log is being written, is not this owner's, or does not add up.
    """
    with Log.open(folder, origin=origin, signer=signer, clock=clock) as log:
        name = _name(folder, record)
        Blobs.open(folder, create=False).shred(name)
        log.append(Redaction(record=record, blob=name, why=why))
        log.checkpoint()
    return name


def _name(folder: Path, wanted: int) -> str:
    name = None
    redacted = False
    for index, record in read_records(folder):
        if index == wanted and isinstance(record, Payload) and record.blob != "withheld":
            name = record.blob
        if isinstance(record, Redaction) and record.record == wanted:
            redacted = True
    if name is None:
        raise ManifestError(
            f"record {wanted} of {folder} has no sealed frame; splitlearn audit show lists which do"
        )
    if redacted and not key_path(folder, name).exists():
        raise ManifestError(f"the frame of record {wanted} is destroyed already")
    return name
