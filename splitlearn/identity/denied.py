"""Who is no longer welcome: a numbered list of names and serial numbers, signed by the CA's key.

A list is taken over only when the CA signed it and its number is not below the one already held, so
nobody can bring a revoked party back by serving yesterday's list.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from splitlearn.errors import IdentityError
from splitlearn.identity import files
from splitlearn.identity.names import PartyName

__all__ = ["DENIED_FILE", "MAX_DENIED", "DenyList", "adopt"]

DENIED_FILE = "denied.json"
# With certificates of 24 hours a federation that denies more than this has another problem.
MAX_DENIED = 10_000


@dataclass(frozen=True)
class DenyList:
    """`number` grows with every change; 0 is the empty list before the first one.

    uris: names denied whatever certificate they show. serials: single certificates, in hex.
    """

    federation: str
    number: int = 0
    uris: frozenset[str] = frozenset()
    serials: frozenset[str] = frozenset()

    def denies(self, name: PartyName, *, serial: int) -> bool:
        """Whether the list names this party in this role, or this certificate."""
        return name.uri in self.uris or f"{serial:x}" in self.serials

    def signed(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        """JSON of the list with the CA's signature: what parties fetch, and what lies on disk."""
        body = _Body(
            federation=self.federation,
            number=self.number,
            uris=tuple(sorted(self.uris)),
            serials=tuple(sorted(self.serials)),
        )
        signature = key.sign(_CONTEXT + msgspec.json.encode(body), ec.ECDSA(hashes.SHA256()))
        return msgspec.json.encode(_Signed(denied=body, signature=signature))

    @classmethod
    def parse(cls, data: bytes, *, ca: x509.Certificate, federation: str) -> "DenyList":
        """Read what `signed` wrote. Raises IdentityError where the CA did not sign just that."""
        if len(data) > files.MAX_FILE_BYTES:
            raise IdentityError(f"deny-list is longer than {files.MAX_FILE_BYTES} bytes")
        try:
            signed = msgspec.json.decode(data, type=_Signed)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise IdentityError(f"deny-list is not one of ours: {error}") from None
        _verify(signed, ca=ca)
        body = signed.denied
        if body.federation != federation:
            raise IdentityError(
                f"deny-list is of federation {body.federation!r}; expected {federation!r}"
            )
        return cls(
            federation=federation,
            number=body.number,
            uris=frozenset(body.uris),
            serials=frozenset(body.serials),
        )

    @classmethod
    def load(cls, folder: Path, *, ca: x509.Certificate, federation: str) -> "DenyList":
        """The list that lies in a party's or a registrar's folder; empty where there is none yet."""
        path = folder / DENIED_FILE
        if not path.exists():
            return cls(federation=federation)
        return cls.parse(files.read(path), ca=ca, federation=federation)


def adopt(folder: Path, *, data: bytes, ca: x509.Certificate, federation: str) -> DenyList:
    """Take a fetched list over into `folder`, never an older one than it holds.

    Raises IdentityError where the CA did not sign it or its number is below the one held.
    """
    fetched = DenyList.parse(data, ca=ca, federation=federation)
    with files.locked(folder):
        held = DenyList.load(folder, ca=ca, federation=federation)
        if fetched.number < held.number:
            raise IdentityError(
                f"deny-list number {fetched.number} was offered; {folder} already holds number "
                f"{held.number}, so somebody serves an old list: tell the registrar's people"
            )
        if fetched != held:
            files.write(folder / DENIED_FILE, data)
    return fetched


_CONTEXT = b"splitlearn deny-list v1\0"
_Uri = Annotated[str, msgspec.Meta(max_length=160)]
# A serial number has at most 20 octets (RFC 5280, 4.1.2.2).
_Serial = Annotated[str, msgspec.Meta(pattern=r"^[1-9a-f][0-9a-f]{0,39}$")]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    federation: Annotated[str, msgspec.Meta(max_length=64)]
    number: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    uris: Annotated[tuple[_Uri, ...], msgspec.Meta(max_length=MAX_DENIED)]
    serials: Annotated[tuple[_Serial, ...], msgspec.Meta(max_length=MAX_DENIED)]


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    denied: _Body
    signature: bytes


def _verify(signed: _Signed, *, ca: x509.Certificate) -> None:
    key = ca.public_key()
    message = _CONTEXT + msgspec.json.encode(signed.denied)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise IdentityError("federation's CA has another kind of key; expected P-256")
    try:
        key.verify(signed.signature, message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        raise IdentityError("deny-list is not signed by the federation's CA") from None
