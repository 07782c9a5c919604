"""Is this the party that I expect? Every check of a peer's certificate, in one place and one order.

Both ends of a connection ask here, whatever TLS said before. Authorised is the URI, never the common
name or the address. Each refusal names the check that failed and what would be right.
"""

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from splitlearn.errors import IdentityError
from splitlearn.identity.certificates import (
    federation_of,
    fingerprint,
    log_public_of,
    name_of,
    pin_of,
    read_der,
)
from splitlearn.identity.denied import DenyList
from splitlearn.identity.names import PartyName
from splitlearn.roles import Role

__all__ = ["PROOF_CONTEXT", "Peer", "authorise", "check_chain", "check_dates", "verify_proof"]

# Goes before every message that a certificate's key signs, so that no proof can pass for a TLS
# handshake, a certificate request, or the other way round.
PROOF_CONTEXT = b"splitlearn proof v1\0"


@dataclass(frozen=True)
class Peer:
    """A party whose certificate passed. fingerprint: SHA-256 of its DER in hex.

    log_public: the Ed25519 key (32 bytes) that signs the peer's log heads.
    """

    name: PartyName
    fingerprint: str
    serial: int
    log_public: bytes
    not_after: datetime


def authorise(
    certificate_der: bytes,
    *,
    ca: x509.Certificate,
    expected: PartyName | None,
    federation: str,
    roles: frozenset[Role],
    denied: DenyList,
    now: datetime,
) -> Peer:
    """Judge a peer's certificate at the moment `now` (aware, UTC); return who it is.

    expected: the one party and role that may answer, or None where any of `roles` may.
    Raises IdentityError that names the first check that failed: chain, dates, name, federation, role,
    party, deny-list.
    """
    certificate = read_der(certificate_der, whose="peer's certificate")
    check_chain(certificate, ca=ca, whose="peer's certificate")
    name = name_of(certificate)
    check_dates(certificate, whose=f"certificate of {name.uri}", now=now)
    if name.federation != federation:
        raise IdentityError(f"peer is {name.uri}, of another federation; expected {federation}")
    if name.role not in roles:
        allowed = ", ".join(sorted(roles))
        raise IdentityError(f"peer {name.uri} has the wrong role {name.role}; expected {allowed}")
    if expected is not None and name != expected:
        part = "name" if name.role == expected.role else "role"
        raise IdentityError(f"peer is {name.uri}, the wrong {part}; expected {expected.uri}")
    if denied.denies(name, serial=certificate.serial_number):
        raise IdentityError(
            f"peer {name.uri} is denied by the federation's deny-list number {denied.number}"
        )
    return Peer(
        name=name,
        fingerprint=fingerprint(certificate),
        serial=certificate.serial_number,
        log_public=log_public_of(certificate),
        not_after=certificate.not_valid_after_utc,
    )


def check_chain(certificate: x509.Certificate, *, ca: x509.Certificate, whose: str) -> None:
    """Raise IdentityError unless `ca` itself signed `certificate`, and not to be a CA in turn."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise IdentityError(
            f"{whose} comes from the wrong CA; expected the CA of {federation_of(ca)} "
            f"with key {pin_of(ca)[:16]}..."
        ) from None
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        raise IdentityError(f"{whose} does not say what it may be used for") from None
    if basic.ca or not usage.digital_signature:
        raise IdentityError(f"{whose} is not a party's certificate but one for another use")


def check_dates(certificate: x509.Certificate, *, whose: str, now: datetime) -> None:
    """Raise IdentityError where `now` lies outside the certificate's days."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise IdentityError(
            f"{whose} is not yet valid: it begins at {_moment(begins)} and the clock here says "
            f"{_moment(now)}; compare the two clocks"
        )
    if now > ends:
        raise IdentityError(
            f"{whose} expired at {_moment(ends)} and the clock here says {_moment(now)}; "
            "its owner has to renew it, or to join again with a new token"
        )


def verify_proof(certificate_der: bytes, *, message: bytes, signature: bytes) -> None:
    """Raise IdentityError unless the certificate's key signed `message` (see `Identity.sign`)."""
    key = read_der(certificate_der, whose="peer's certificate").public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise IdentityError("peer's certificate has another kind of key; expected P-256")
    try:
        key.verify(signature, PROOF_CONTEXT + message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        raise IdentityError("peer could not prove that it holds its certificate's key") from None


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
