"""A federation's own CA: the folder it lives in, what it certifies, and whom it denies.

    ca.key           signs certificates and deny-lists; read only here     0600
    ca.crt           what everybody trusts                                 0644
    federation.json  name, and the address where the registrar serves      0600
    issued.jsonl     one line per certificate: name, serial, digest, end   0600
    denied.json, tokens.json  the deny-list, and the hashes of join tokens 0600

A name comes from a token's record, a deny-list check or an operator's word, never from a request.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import certificates, files
from splitlearn.identity.denied import DENIED_FILE, MAX_DENIED, DenyList
from splitlearn.identity.names import PartyName, check_federation, check_party
from splitlearn.roles import Role

__all__ = ["Authority", "create_federation", "revoke"]


@dataclass(frozen=True)
class Authority:
    """An opened federation folder. registrar: "host:port" where it serves, if it ever did."""

    folder: Path
    federation: str
    ca: x509.Certificate = field(repr=False)
    registrar: str | None
    _key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """Read the folder. Raises ManifestError where it holds no federation."""
        if not (folder / _CA_KEY).exists():
            raise ManifestError(
                f"{folder} holds no federation; run splitlearn federation create {folder} first"
            )
        ca = certificates.read_pem(files.read(folder / _CA), whose=str(folder / _CA))
        key = certificates.read_key(
            files.read_private(folder / _CA_KEY), whose=str(folder / _CA_KEY)
        )
        if key.public_key() != ca.public_key():
            raise IdentityError(f"{folder / _CA_KEY} is not the key of {folder / _CA}")
        settings = _read_settings(folder)
        if settings.federation != certificates.federation_of(ca):
            raise IdentityError(f"{folder / _SETTINGS} and {folder / _CA} name two federations")
        return cls(
            folder=folder,
            federation=settings.federation,
            ca=ca,
            registrar=settings.registrar,
            _key=key,
        )

    @property
    def pin(self) -> str:
        """SHA-256 of the CA's key in hex, as tokens carry it and people compare it."""
        return certificates.pin_of(self.ca)

    @property
    def denied(self) -> DenyList:
        """The deny-list as it stands now."""
        return DenyList.load(self.folder, ca=self.ca, federation=self.federation)

    @property
    def denied_json(self) -> bytes:
        """The signed deny-list as parties take it over."""
        return files.read(self.folder / DENIED_FILE)

    def name(self, *, party: str, role: Role) -> PartyName:
        """The name of a party here. Raises ManifestError where it is misspelt."""
        return PartyName(federation=self.federation, party=party, role=role)

    def issue(
        self,
        name: PartyName,
        *,
        public_key: ec.EllipticCurvePublicKey,
        log_public: bytes,
        now: datetime,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> x509.Certificate:
        """Certify a key for a name and record it; from BACKDATE ago for LIFETIME unless told.

        Raises IdentityError where the name is denied or of another federation.
        """
        if name.federation != self.federation:
            raise IdentityError(f"{name.uri} is of another federation than {self.federation}")
        if name.uri in self.denied.uris:
            raise IdentityError(f"{name.uri} is on the deny-list of {self.federation}")
        leaf = certificates.make_leaf(
            self._key,
            ca=self.ca,
            name=name,
            public_key=public_key,
            log_public=log_public,
            not_before=not_before or now - certificates.BACKDATE,
            not_after=not_after or now + certificates.LIFETIME,
        )
        self._record(leaf, name=name, log_public=log_public)
        return leaf

    def serves_at(self, address: str) -> None:
        """Remember where the registrar serves, for invitations and certificates carried by hand."""
        with files.locked(self.folder):
            _write_settings(self.folder, federation=self.federation, registrar=address)

    def deny(self, *, uris: frozenset[str], serials: frozenset[str]) -> DenyList:
        """Add to the deny-list, sign it with the next number, and return it."""
        with files.locked(self.folder):
            held = self.denied
            longer = DenyList(
                federation=self.federation,
                number=held.number + 1,
                uris=held.uris | uris,
                serials=held.serials | serials,
            )
            if max(len(longer.uris), len(longer.serials)) > MAX_DENIED:
                raise ManifestError(f"deny-list is full: it holds at most {MAX_DENIED} entries")
            files.write(self.folder / DENIED_FILE, longer.signed(self._key))
        return longer

    def _record(self, leaf: x509.Certificate, *, name: PartyName, log_public: bytes) -> None:
        line = _Issued(
            uri=name.uri,
            serial=f"{leaf.serial_number:x}",
            fingerprint=certificates.fingerprint(leaf),
            log_public=log_public.hex(),
            not_after=leaf.not_valid_after_utc.isoformat(),
        )
        with files.locked(self.folder):
            files.append(self.folder / _ISSUED, msgspec.json.encode(line) + b"\n")


def create_federation(folder: Path, *, name: str, now: datetime | None = None) -> Authority:
    """Make a CA named `name` in `folder`. Raises ManifestError where one is there already."""
    check_federation(name)
    files.make_folder(folder)
    with files.locked(folder):
        if (folder / _CA_KEY).exists():
            raise ManifestError(f"{folder} holds a federation already; nothing was changed")
        key = certificates.new_key()
        ca = certificates.make_ca(key, federation=name, now=now or datetime.now(UTC))
        files.write(folder / _CA, certificates.pem(ca), mode=files.PUBLIC)
        files.write(folder / DENIED_FILE, DenyList(federation=name).signed(key))
        _write_settings(folder, federation=name, registrar=None)
        # Last, because a folder counts as a federation when it holds the key.
        files.write(folder / _CA_KEY, certificates.key_pem(key))
    return Authority.open(folder)


def revoke(
    folder: Path,
    *,
    party: str | None = None,
    role: Role | None = None,
    serial: str | None = None,
) -> DenyList:
    """Deny a party (in one role, or in all), or one certificate by its serial number in hex.

    Returns the new deny-list, which parties fetch from the registrar. Raises ManifestError.
    """
    if (party is None) == (serial is None):
        raise ManifestError("revoke takes a party or a serial number: expected exactly one of them")
    authority = Authority.open(folder)
    if serial is not None:
        return authority.deny(uris=frozenset(), serials=frozenset({_hex(serial)}))
    # The registrar's own role is left out: a party of that name must not close the registrar.
    roles = tuple(frozenset(Role) - {Role.REGISTRAR}) if role is None else (role,)
    names = [authority.name(party=check_party(party or ""), role=each) for each in roles]
    return authority.deny(uris=frozenset(name.uri for name in names), serials=frozenset())


_CA_KEY = "ca.key"
_CA = "ca.crt"
_SETTINGS = "federation.json"
_ISSUED = "issued.jsonl"


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    federation: Annotated[str, msgspec.Meta(max_length=64)]
    registrar: Annotated[str, msgspec.Meta(max_length=300)] | None


class _Issued(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uri: str
    serial: str
    fingerprint: str
    log_public: str
    not_after: str


def _read_settings(folder: Path) -> _Settings:
    path = folder / _SETTINGS
    try:
        return msgspec.json.decode(files.read(path), type=_Settings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} is not one of ours: {error}") from None


def _write_settings(folder: Path, *, federation: str, registrar: str | None) -> None:
    settings = _Settings(federation=federation, registrar=registrar)
    files.write(folder / _SETTINGS, msgspec.json.encode(settings))


def _hex(serial: str) -> str:
    try:
        number = int(serial.replace(":", ""), 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 160:
        raise ManifestError(f"serial number {serial[:80]!r}: expected hex digits, at most 40")
    return f"{number:x}"
