"""Certificates and certificate requests: how they are built, and how they are read within limits.

P-256 throughout, because the TLS of gRPC wants ECDSA. A party's certificate carries one URI, one DNS
name and the public half of the Ed25519 key that signs its logs. Names come from the caller, never
from a request. Nothing here decides whom to trust: that is `judge.authorise`.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity.names import PartyName, check_federation

__all__ = [
    "BACKDATE",
    "LIFETIME",
    "LOG_KEY_OID",
    "MAX_CERTIFICATE_BYTES",
    "Request",
    "federation_of",
    "fingerprint",
    "key_pem",
    "log_public_of",
    "make_ca",
    "make_leaf",
    "make_request",
    "name_of",
    "new_key",
    "pem",
    "pin_of",
    "public_key_pem",
    "read_der",
    "read_key",
    "read_log_key",
    "read_pem",
    "read_request",
]

# Short enough that a lost key is soon worthless, long enough to survive a registrar's bad night.
LIFETIME = timedelta(hours=24)
# Clocks of two organisations may differ by this much without a fresh certificate being refused.
BACKDATE = timedelta(minutes=10)
# A federation outlives its projects; the CA's key never leaves the registrar's folder.
CA_LIFETIME = timedelta(days=3650)
# Ours are about 800 bytes; a certificate over 16 KiB is not one of ours.
MAX_CERTIFICATE_BYTES = 16 * 2**10
# Non-critical extension with the Ed25519 log key, 32 bytes in an OCTET STRING. The arc is a random
# UUID (2.25 is the arc for those, ITU-T X.667), so no authority had to be asked.
LOG_KEY_OID: Final = x509.ObjectIdentifier("2.25.71100118418769158377562507348464813569")


@dataclass(frozen=True)
class Request:
    """What a party asks a registrar to certify: two public keys, each proven to be held.

    csr: PEM of a PKCS#10 request. log_public: 32 bytes. log_proof: the log key's signature over the
    request, so that nobody registers a log key that is somebody else's.
    """

    csr: bytes
    log_public: bytes
    log_proof: bytes


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def make_ca(key: ec.EllipticCurvePrivateKey, *, federation: str, now: datetime) -> x509.Certificate:
    """Certificate of a federation's own CA: path length 0, and its name as common name and URI."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, federation)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{federation}")]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )


def make_leaf(
    ca_key: ec.EllipticCurvePrivateKey,
    *,
    ca: x509.Certificate,
    name: PartyName,
    public_key: ec.EllipticCurvePublicKey,
    log_public: bytes,
    not_before: datetime,
    not_after: datetime,
) -> x509.Certificate:
    """Certificate of one party in one role, for TLS in either direction."""
    label = f"{name.party}.{name.role.value}"
    names = [x509.UniformResourceIdentifier(name.uri), x509.DNSName(name.dns)]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)]))
        .issuer_name(ca.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.UnrecognizedExtension(LOG_KEY_OID, _OCTETS_32 + log_public), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )


def make_request(key: ec.EllipticCurvePrivateKey, *, log_key: ed25519.Ed25519PrivateKey) -> Request:
    """Ask for a certificate of `key`. The subject is empty: a request has no say in its name."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = request.sign(key, hashes.SHA256())
    return Request(
        csr=signed.public_bytes(serialization.Encoding.PEM),
        log_public=log_key.public_key().public_bytes_raw(),
        log_proof=log_key.sign(_PROOF + signed.public_bytes(serialization.Encoding.DER)),
    )


def read_request(request: Request) -> ec.EllipticCurvePublicKey:
    """Check both proofs of possession; return the key to certify. Raises IdentityError."""
    if len(request.csr) > MAX_CERTIFICATE_BYTES:
        raise IdentityError(f"certificate request is longer than {MAX_CERTIFICATE_BYTES} bytes")
    try:
        csr = x509.load_pem_x509_csr(request.csr)
        public_key = csr.public_key()
        proven = csr.is_signature_valid
        der = csr.public_bytes(serialization.Encoding.DER)
    except _PARSE_ERRORS:
        raise IdentityError("certificate request is not a PKCS#10 request in PEM") from None
    if not isinstance(public_key, ec.EllipticCurvePublicKey) or not _is_p256(public_key):
        raise IdentityError("certificate request is for another kind of key; expected P-256")
    if not proven:
        raise IdentityError("certificate request is not signed by the key it asks for")
    try:
        log_key = ed25519.Ed25519PublicKey.from_public_bytes(request.log_public)
        log_key.verify(request.log_proof, _PROOF + der)
    except (InvalidSignature, *_PARSE_ERRORS):
        raise IdentityError("log key in the request did not sign the request") from None
    return public_key


def read_der(data: bytes, *, whose: str) -> x509.Certificate:
    """Parse one certificate of at most MAX_CERTIFICATE_BYTES. Raises IdentityError."""
    if len(data) > MAX_CERTIFICATE_BYTES:
        raise IdentityError(f"{whose} is longer than {MAX_CERTIFICATE_BYTES} bytes")
    try:
        return x509.load_der_x509_certificate(data)
    except _PARSE_ERRORS:
        raise IdentityError(f"{whose} is not an X.509 certificate in DER") from None


def read_pem(data: bytes, *, whose: str) -> x509.Certificate:
    """Parse one certificate of at most MAX_CERTIFICATE_BYTES. Raises IdentityError."""
    if len(data) > MAX_CERTIFICATE_BYTES:
        raise IdentityError(f"{whose} is longer than {MAX_CERTIFICATE_BYTES} bytes")
    try:
        return x509.load_pem_x509_certificate(data)
    except _PARSE_ERRORS:
        raise IdentityError(f"{whose} is not an X.509 certificate in PEM") from None


def read_key(data: bytes, *, whose: str) -> ec.EllipticCurvePrivateKey:
    """Parse a P-256 private key in PEM. Raises IdentityError, which never quotes it."""
    key = _read_private(data, whose=whose)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key):
        raise IdentityError(f"{whose} is another kind of key; expected P-256")
    return key


def read_log_key(data: bytes, *, whose: str) -> ed25519.Ed25519PrivateKey:
    """Parse an Ed25519 private key in PEM. Raises IdentityError, which never quotes it."""
    key = _read_private(data, whose=whose)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise IdentityError(f"{whose} is another kind of key; expected Ed25519")
    return key


def pem(certificate: x509.Certificate) -> bytes:
    """PEM of a certificate."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    """PKCS#8 PEM of a private key, unencrypted: for a 0600 file or for a TLS library, no more."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_key_pem(certificate: x509.Certificate) -> bytes:
    """PEM of the SubjectPublicKeyInfo that a certificate certifies."""
    return certificate.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's DER, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def pin_of(ca: x509.Certificate) -> str:
    """SHA-256 of a CA's SubjectPublicKeyInfo, in hex: what a join token pins (RFC 7469, 2.4)."""
    spki = ca.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(spki).hexdigest()


def federation_of(ca: x509.Certificate) -> str:
    """Name of the federation whose CA this is. Raises IdentityError where it is no such CA."""
    uris, _ = _alternative_names(ca)
    prefix = "spiffe://"
    if len(uris) != 1 or not uris[0].startswith(prefix):
        raise IdentityError("certificate is not a federation's CA: it carries no federation URI")
    try:
        return check_federation(uris[0].removeprefix(prefix))
    except ManifestError as error:
        raise IdentityError(f"certificate is not a federation's CA: {error}") from None


def name_of(certificate: x509.Certificate) -> PartyName:
    """The one party and role that a certificate names, twice over. Raises IdentityError."""
    uris, hosts = _alternative_names(certificate)
    if len(uris) != 1:
        raise IdentityError(f"certificate carries {len(uris)} URIs; expected exactly one")
    name = PartyName.parse(uris[0])
    if hosts != [name.dns]:
        raise IdentityError(f"certificate of {name.uri} carries another DNS name than {name.dns}")
    return name


def log_public_of(certificate: x509.Certificate) -> bytes:
    """The 32 bytes of the party's Ed25519 log key. Raises IdentityError where it has none."""
    try:
        extension = certificate.extensions.get_extension_for_oid(LOG_KEY_OID)
    except (x509.ExtensionNotFound, *_PARSE_ERRORS):
        raise IdentityError("certificate names no log key") from None
    value = extension.value
    data = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
    if len(data) != len(_OCTETS_32) + 32 or not data.startswith(_OCTETS_32):
        raise IdentityError("certificate's log key is not 32 bytes of Ed25519")
    return data.removeprefix(_OCTETS_32)


# DER tag and length of an OCTET STRING of 32 bytes.
_OCTETS_32 = b"\x04\x20"
_PROOF = b"splitlearn log key request v1\0"
# What cryptography raises on bytes that are not what they should be.
_PARSE_ERRORS = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _is_p256(key: ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) -> bool:
    return isinstance(key.curve, ec.SECP256R1)


def _read_private(data: bytes, *, whose: str) -> object:
    try:
        return serialization.load_pem_private_key(data, password=None)
    except _PARSE_ERRORS:
        raise IdentityError(f"{whose} is not an unencrypted private key in PEM") from None


def _alternative_names(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, *_PARSE_ERRORS):
        raise IdentityError("certificate carries no subject alternative names") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return uris, names.get_values_for_type(x509.DNSName)
