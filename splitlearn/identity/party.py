"""A party's own identity, as it lies in its folder: keys, certificate, CA, and where to renew.

    party.key  the certificate's P-256 key, made here and never sent      0600
    log.key    the Ed25519 key that signs this party's logs               0600
    party.crt  the certificate; ca.crt the federation's CA                0644
    denied.json, party.json  the deny-list, and name and registrar        0600

Nothing here talks to a network. Keys appear in no repr and in no error.
"""

import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import certificates, files
from splitlearn.identity.denied import DenyList, adopt
from splitlearn.identity.judge import PROOF_CONTEXT, check_chain
from splitlearn.identity.names import PartyName

__all__ = ["CA_FILE", "CERTIFICATE_FILE", "KEY_FILE", "LOG_KEY_FILE", "Identity", "Keys"]

KEY_FILE = "party.key"
LOG_KEY_FILE = "log.key"
CERTIFICATE_FILE = "party.crt"
CA_FILE = "ca.crt"
_PARTY_FILE = "party.json"


@dataclass(frozen=True)
class Keys:
    """The two private keys of a party in one role."""

    certificate: ec.EllipticCurvePrivateKey = field(repr=False)
    log: ed25519.Ed25519PrivateKey = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> "Keys":
        """Read both keys. Raises ManifestError where one is missing or open to other users."""
        own, log = folder / KEY_FILE, folder / LOG_KEY_FILE
        return cls(
            certificate=certificates.read_key(files.read_private(own), whose=str(own)),
            log=certificates.read_log_key(files.read_private(log), whose=str(log)),
        )

    @classmethod
    def obtain(cls, folder: Path) -> "Keys":
        """Read the folder's keys, or make them where there are none: a log keeps its signer."""
        files.make_folder(folder)
        with files.locked(folder):
            if not (folder / KEY_FILE).exists():
                files.write(folder / KEY_FILE, certificates.key_pem(certificates.new_key()))
            if not (folder / LOG_KEY_FILE).exists():
                log = ed25519.Ed25519PrivateKey.generate()
                files.write(folder / LOG_KEY_FILE, certificates.key_pem(log))
        return cls.load(folder)

    def request(self) -> certificates.Request:
        """A request for a certificate of these keys."""
        return certificates.make_request(self.certificate, log_key=self.log)


@dataclass(frozen=True)
class Identity:
    """Everything a party proves itself with, read at one moment; `reload` reads it anew.

    registrar: "host:port" to renew at, or None where certificates are carried by hand.
    """

    folder: Path
    name: PartyName
    certificate: x509.Certificate = field(repr=False)
    ca: x509.Certificate = field(repr=False)
    log_key: ed25519.Ed25519PrivateKey = field(repr=False, compare=False)
    registrar: str | None
    _key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        """Read and cross-check a party's folder; dates are not judged here.

        Raises ManifestError where something is missing or open to other users, IdentityError where
        the parts do not belong together.
        """
        if not (folder / CERTIFICATE_FILE).exists():
            raise ManifestError(
                f"{folder} holds no certificate; run splitlearn join with a token from your "
                "federation's registrar"
            )
        certificate = _read(folder / CERTIFICATE_FILE)
        ca = _read(folder / CA_FILE)
        keys = Keys.load(folder)
        name = check_certificate(
            certificate, ca=ca, keys=keys, whose=str(folder / CERTIFICATE_FILE)
        )
        note = _read_note(folder)
        if note.uri != name.uri:
            raise IdentityError(f"{folder} was made for {note.uri} but holds {name.uri}")
        return cls(
            folder=folder,
            name=name,
            certificate=certificate,
            ca=ca,
            log_key=keys.log,
            registrar=note.registrar,
            _key=keys.certificate,
        )

    @classmethod
    def establish(
        cls,
        folder: Path,
        *,
        certificate: bytes,
        ca: bytes,
        denied: bytes,
        registrar: str | None,
    ) -> "Identity":
        """Write what a registrar answered (PEM, PEM, deny-list) beside the keys; return the result.

        Raises IdentityError where the certificate is not for this folder's keys, or the folder
        already belongs to another party or federation.
        """
        leaf = certificates.read_pem(certificate, whose="certificate from the registrar")
        root = certificates.read_pem(ca, whose="CA from the registrar")
        whose = "certificate from the registrar"
        name = check_certificate(leaf, ca=root, keys=Keys.load(folder), whose=whose)
        check_owner(folder, name=name, pin=certificates.pin_of(root))
        adopt(folder, data=denied, ca=root, federation=name.federation)
        note = msgspec.json.encode(_Note(uri=name.uri, registrar=registrar))
        with files.locked(folder):
            files.write(folder / CA_FILE, certificates.pem(root), mode=files.PUBLIC)
            files.write(folder / _PARTY_FILE, note)
            # Last, because a folder counts as complete when it holds a certificate.
            files.write(folder / CERTIFICATE_FILE, certificates.pem(leaf), mode=files.PUBLIC)
        return cls.load(folder)

    def reload(self) -> "Identity":
        """What the folder holds now, say after a renewal by another process."""
        return Identity.load(self.folder)

    @property
    def key_pem(self) -> bytes:
        """The certificate's private key, for a TLS library and nothing else."""
        return certificates.key_pem(self._key)

    @property
    def chain_pem(self) -> bytes:
        """The certificate as TLS presents it; the CA itself is not sent, for the peer has it."""
        return certificates.pem(self.certificate)

    @property
    def ca_pem(self) -> bytes:
        """The federation's CA: the only root to trust."""
        return certificates.pem(self.ca)

    @property
    def certificate_der(self) -> bytes:
        """The certificate as `authorise` takes it."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate's DER, in hex."""
        return certificates.fingerprint(self.certificate)

    @property
    def log_public(self) -> bytes:
        """The 32 bytes that verify this party's logs."""
        return self.log_key.public_key().public_bytes_raw()

    @property
    def denied(self) -> DenyList:
        """The deny-list that lies in the folder now."""
        return DenyList.load(self.folder, ca=self.ca, federation=self.name.federation)

    def sign(self, message: bytes) -> bytes:
        """Prove possession of the certificate's key: ECDSA, SHA-256; see `judge.verify_proof`."""
        return self._key.sign(PROOF_CONTEXT + message, ec.ECDSA(hashes.SHA256()))

    def request(self) -> certificates.Request:
        """A request for a new certificate of the same keys."""
        return certificates.make_request(self._key, log_key=self.log_key)


def check_certificate(
    certificate: x509.Certificate, *, ca: x509.Certificate, keys: Keys, whose: str
) -> PartyName:
    """Raise IdentityError unless `certificate` is of `ca`, for these keys; return whom it names."""
    check_chain(certificate, ca=ca, whose=whose)
    if certificate.public_key() != keys.certificate.public_key():
        raise IdentityError(f"{whose} is for another key than {KEY_FILE}")
    log_public = keys.log.public_key().public_bytes_raw()
    if not hmac.compare_digest(certificates.log_public_of(certificate), log_public):
        raise IdentityError(f"{whose} is for another log key than {LOG_KEY_FILE}")
    name = certificates.name_of(certificate)
    if name.federation != certificates.federation_of(ca):
        raise IdentityError(f"{whose} names {name.uri}, which its CA does not speak for")
    return name


def check_owner(folder: Path, *, name: PartyName | None, pin: str) -> PartyName | None:
    """Raise ManifestError where `folder` belongs to another federation or party; return its owner."""
    if not (folder / CA_FILE).exists() or not (folder / _PARTY_FILE).exists():
        return None
    ca = _read(folder / CA_FILE)
    owner = PartyName.parse(_read_note(folder).uri)
    if certificates.pin_of(ca) != pin:
        raise ManifestError(
            f"{folder} belongs to federation {owner.federation} with another CA; choose another folder"
        )
    if name is not None and name != owner:
        raise ManifestError(
            f"{folder} belongs to {owner.uri}; choose another folder for {name.uri}"
        )
    return owner


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uri: Annotated[str, msgspec.Meta(max_length=160)]
    registrar: Annotated[str, msgspec.Meta(max_length=300)] | None


def _read(path: Path) -> x509.Certificate:
    return certificates.read_pem(files.read(path), whose=str(path))


def _read_note(folder: Path) -> _Note:
    path = folder / _PARTY_FILE
    try:
        return msgspec.json.decode(files.read(path), type=_Note)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} is not one of ours: {error}") from None
