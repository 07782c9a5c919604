"""Signed log heads: what a log was at one size, as a note that others can hold against it for ever.

A head is a C2SP tlog-checkpoint (https://c2sp.org/tlog-checkpoint): three lines of text, signed with
Ed25519 as a C2SP signed note (https://c2sp.org/signed-note). Never reads a file, never signs twice.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from splitlearn.audit.merkle import HASH_BYTES
from splitlearn.errors import AuditError

__all__ = [
    "MAX_NOTE_BYTES",
    "Checkpoint",
    "cosign",
    "format_verifier_key",
    "open_note",
    "parse_verifier_key",
    "sign_note",
]

# A head takes 200 bytes and each countersignature 130; 16 KiB is room for over a hundred.
MAX_NOTE_BYTES = 16 * 1024


@dataclass(frozen=True)
class Checkpoint:
    """Head of the log named `origin` when it had `size` records."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    def sign(self, key: Ed25519PrivateKey) -> str:
        """The head as a signed note; the signer's name is the origin."""
        return sign_note(self.text, name=self.origin, key=key)

    def signature(self, key: Ed25519PrivateKey) -> bytes:
        """The bare signature of the head, 64 bytes."""
        return key.sign(self.text.encode())

    def note(self, signature: bytes, *, public_key: bytes, name: str | None = None) -> str:
        """The note that a bare signature by `name`, the log itself if not given, makes of the head."""
        return f"{self.text}\n{_signature_line(name or self.origin, public_key, signature)}"

    @classmethod
    def open(
        cls, note: str, *, origin: str, public_key: bytes, name: str | None = None
    ) -> "Checkpoint":
        """Verify `note` and read it; `name` signed it, the log itself if not given.

        Raises AuditError if anything about it is not as it must be.
        """
        text = open_note(note, name=name or origin, public_key=public_key)
        lines = text.split("\n")
        if len(lines) < 4 or lines[0] != origin:
            raise AuditError(f"signed head is not one of log {origin!r}")
        _, size, root, *_ = lines
        if not (size.isascii() and size.isdecimal() and size == str(int(size[:20]))):
            raise AuditError(f"signed head of {origin!r} gives no size as its second line")
        return cls(origin=origin, size=int(size), root=_base64(root, length=HASH_BYTES))


def sign_note(text: str, *, name: str, key: Ed25519PrivateKey) -> str:
    """`text`, which must end in a newline, with a signature line by `name` below it."""
    assert text.endswith("\n"), "a note's text ends in a newline"
    _check_name(name)
    public_key = key.public_key().public_bytes_raw()
    return f"{text}\n{_signature_line(name, public_key, key.sign(text.encode()))}"


def cosign(note: str, *, name: str, key: Ed25519PrivateKey) -> str:
    """`note` with one more signature below the others, over the same text.

    Whoever signs has checked the text: a countersignature says that `name` holds this very head.
    """
    text, _, signatures = note.rpartition("\n\n")
    own = sign_note(text + "\n", name=name, key=key).rpartition("\n\n")[2]
    return f"{text}\n\n{signatures}{own}"


def open_note(note: str, *, name: str, public_key: bytes) -> str:
    """The note's text, if `public_key` signed it under `name`; signatures by others are passed over.

    Raises AuditError.
    """
    text, blank, signatures = note.rpartition("\n\n")
    if not blank or not signatures.endswith("\n") or len(note.encode()) > MAX_NOTE_BYTES:
        raise AuditError("not a signed note: no text and signatures with a blank line between")
    text += "\n"
    key_id = _key_id(name, public_key)
    for line in signatures[:-1].split("\n"):
        dash, _, rest = line.partition(" ")
        signer, _, encoded = rest.partition(" ")
        if dash != _DASH or not encoded:
            raise AuditError("not a signed note: a line below the blank one is no signature")
        signature = _base64(encoded)
        if signer != name or signature[:_KEY_ID_BYTES] != key_id:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(
                signature[_KEY_ID_BYTES:], text.encode()
            )
        except InvalidSignature:
            raise AuditError(f"the signature of {name!r} under the note is forged") from None
        return text
    raise AuditError(f"the note is not signed by {name!r} with key {key_id.hex()}")


def format_verifier_key(name: str, *, public_key: bytes) -> str:
    """Name and public key as one word, `name+key id+base64`, as C2SP tools take it."""
    _check_name(name)
    encoded = base64.b64encode(_ED25519 + public_key).decode()
    return f"{name}+{_key_id(name, public_key).hex()}+{encoded}"


def parse_verifier_key(text: str) -> tuple[str, bytes]:
    """Name and 32 bytes of public key. Raises AuditError.

    >>> parse_verifier_key("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")[0]
    'PeterNeumann'
    """
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    data = _base64(encoded, length=1 + HASH_BYTES)
    if not name or data[:1] != _ED25519 or _key_id(name, data[1:]).hex() != key_id:
        raise AuditError("not a verifier key of the form name+key id+base64")
    return name, data[1:]


_DASH = "\N{EM DASH}"
_KEY_ID_BYTES = 4
_ED25519 = b"\x01"


def _signature_line(name: str, public_key: bytes, signature: bytes) -> str:
    encoded = base64.b64encode(_key_id(name, public_key) + signature).decode()
    return f"{_DASH} {name} {encoded}\n"


def _key_id(name: str, public_key: bytes) -> bytes:
    digest = hashlib.sha256(name.encode() + b"\n" + _ED25519 + public_key)
    return digest.digest()[:_KEY_ID_BYTES]


def _check_name(name: str) -> None:
    assert name == "".join(name.replace("+", " ").split()), f"{name!r} is no name for a key"
    assert name, "a key has a name"


def _base64(text: str, *, length: int | None = None) -> bytes:
    """Decode one canonical spelling only, so that a note has one form."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data or base64.b64encode(data).decode() != text or length not in {None, len(data)}:
        wanted = "base64" if length is None else f"{length} bytes in base64"
        raise AuditError(f"not a signed note or key: {text[:16]!r}... is not {wanted}")
    return data
