"""A signed statement over a report: this file was made of the log with this head. Optional.

An in-toto Statement v1 (https://in-toto.io/Statement/v1) in a DSSE envelope
(https://github.com/secure-systems-lab/dsse, version 1.0.0), signed with Ed25519. It binds the report
to the head; it says nothing about whether the log is true. Never reads or writes a file.
"""

import base64
import binascii
import hashlib
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from splitlearn.errors import AuditError, ManifestError
from splitlearn.report.document import Document

__all__ = [
    "MAX_ENVELOPE_BYTES",
    "PAYLOAD_TYPE",
    "PREDICATE_TYPE",
    "Predicate",
    "Statement",
    "Subject",
    "pae",
    "verify",
    "write",
]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:splitlearn:audit-report:1"
# A statement takes about 1 KiB.
MAX_ENVELOPE_BYTES = 64 * 1024

_STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
_Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Digest(msgspec.Struct, frozen=True):
    """An in-toto digest set of one."""

    sha256: _Hex


class Subject(msgspec.Struct, frozen=True):
    """What the statement is about, by its digest."""

    name: str
    digest: Digest


class Predicate(msgspec.Struct, frozen=True, kw_only=True):
    """What is stated: the outcome of the check of `records` records of log `origin`, `covered` of them
    under the head that is the first subject. exit: of `splitlearn audit verify`."""

    origin: str
    records: int
    covered: int
    exit: int
    verdict: str
    key: str
    key_pinned: bool
    software: str
    made: str


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """An in-toto Statement v1. Its first subject is the log's head, its second one the report."""

    type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type")
    subject: tuple[Subject, ...]
    predicate_type: Literal["urn:splitlearn:audit-report:1"] = msgspec.field(name="predicateType")
    predicate: Predicate


def write(document: Document, *, report: bytes, name: str, key: Ed25519PrivateKey) -> bytes:
    """The envelope over the report file `name` with bytes `report`, made of `document`.

    The log's head stands as its Merkle root (RFC 6962, SHA-256). Raises ManifestError where no signed
    head of the log fits, so that there is nothing to bind the report to.
    """
    log = document.log
    if not log.root:
        raise ManifestError(
            "no signed head of this log fits its records, so there is nothing to state about it; "
            "leave --statement out"
        )
    statement = Statement(
        type=_STATEMENT_TYPE,
        subject=(
            Subject(f"{log.origin}@{log.covered}", Digest(log.root)),
            Subject(name, Digest(hashlib.sha256(report).hexdigest())),
        ),
        predicate_type="urn:splitlearn:audit-report:1",
        predicate=Predicate(
            origin=log.origin,
            records=log.records,
            covered=log.covered,
            exit=document.verdict.exit,
            verdict=document.verdict.name,
            key=log.key,
            key_pinned=log.pinned,
            software=document.software,
            made=document.made,
        ),
    )
    payload = msgspec.json.encode(statement)
    envelope = _Envelope(
        payload=base64.b64encode(payload).decode(),
        payload_type=PAYLOAD_TYPE,
        signatures=(
            _Signature(
                keyid=_key_id(key.public_key().public_bytes_raw()),
                sig=base64.b64encode(key.sign(pae(PAYLOAD_TYPE, payload))).decode(),
            ),
        ),
    )
    return msgspec.json.format(msgspec.json.encode(envelope), indent=2) + b"\n"


def verify(envelope: bytes, *, public_key: bytes, report: bytes | None = None) -> Statement:
    """The statement in `envelope`, if the owner of `public_key` (32 bytes) signed it.

    report: bytes of the report file; held against the second subject if given. The key ids in the
    envelope are hints and are not used. Raises AuditError.
    """
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise AuditError(f"a statement is at most {MAX_ENVELOPE_BYTES} bytes long")
    try:
        read = msgspec.json.decode(envelope, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"not a DSSE envelope: {error}") from None
    payload = _base64(read.payload)
    if not any(_signed(each, payload, read.payload_type, public_key) for each in read.signatures):
        raise AuditError("the statement is not signed by the key that was given")
    if read.payload_type != PAYLOAD_TYPE:
        raise AuditError(f"the envelope holds {read.payload_type[:80]!r} and no in-toto statement")
    try:
        statement = msgspec.json.decode(payload, type=Statement)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"not a statement about a report: {error}") from None
    if len(statement.subject) != 2:
        raise AuditError("a statement about a report has two subjects, the head and the file")
    if report is not None:
        _check(statement.subject[1], report)
    return statement


def pae(payload_type: str, body: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


class _Signature(msgspec.Struct, frozen=True):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, frozen=True):
    """Unknown fields are passed over, as the specification asks."""

    payload: str
    payload_type: str = msgspec.field(name="payloadType")
    signatures: Annotated[tuple[_Signature, ...], msgspec.Meta(max_length=32)]


def _signed(signature: _Signature, payload: bytes, kind: str, public_key: bytes) -> bool:
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(_base64(signature.sig), pae(kind, payload))
    except (InvalidSignature, AuditError):
        return False
    return True


def _check(subject: Subject, report: bytes) -> None:
    found = hashlib.sha256(report).hexdigest()
    if subject.digest.sha256 != found:
        raise AuditError(
            f"the statement is about a report with SHA-256 {subject.digest.sha256[:16]}..., "
            f"this one has {found[:16]}...: it was changed, or it is another one"
        )


def _key_id(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def _base64(text: str) -> bytes:
    """Either alphabet, as the specification asks."""
    try:
        return base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except (binascii.Error, ValueError):
        raise AuditError("a part of the envelope is not base64") from None


_URL_SAFE = str.maketrans("-_", "+/")
