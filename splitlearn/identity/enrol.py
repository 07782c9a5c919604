"""Joining a federation with a token, and carrying request and certificate by hand where no line is.

The order matters: fetch the CA without trust, compare it with the token's pin, and only then send the
token, over TLS that verifies against that CA. Keys are made in the folder and stay there.
"""

import hmac
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import certificates, exchange, files, tls
from splitlearn.identity.authority import Authority
from splitlearn.identity.names import PartyName, registrar_name
from splitlearn.identity.party import Identity, Keys, check_owner
from splitlearn.identity.tokens import Token
from splitlearn.roles import Role

__all__ = ["approve", "asked_name", "install", "join", "request"]


def join(
    token: str, *, address: str, folder: Path, deadline_s: float = exchange.DEADLINE_S
) -> Identity:
    """Use `token` at the registrar on `address` ("host:port"); write the identity into `folder`.

    A folder that was joined before keeps its keys and may only join again as the same party.
    Raises ManifestError (token's form, folder), ChannelError (nobody there), IdentityError (wrong CA
    pin; token wrong, used, expired or for another party).
    """
    parts = Token.parse(token)
    tls.parse_address(address)
    owner = check_owner(folder, name=None, pin=parts.pin)
    unverified = exchange.Client(
        address=address, context=tls.client_context(ca_pem=None), server_name=None
    )
    ca = certificates.read_pem(
        unverified.get("/v1/ca", deadline_s=deadline_s), whose=f"CA from {address}"
    )
    if not hmac.compare_digest(certificates.pin_of(ca), parts.pin):
        raise IdentityError(
            f"registrar at {address} has the wrong CA: its key is {certificates.pin_of(ca)[:16]}..., "
            f"the token pins {parts.pin[:16]}...; the token was not sent"
        )
    keys = Keys.obtain(folder)
    csr, log_public, log_proof = exchange.proof_fields(keys.request())
    verified = exchange.Client(
        address=address,
        context=tls.client_context(ca_pem=certificates.pem(ca)),
        server_name=registrar_name(certificates.federation_of(ca)).dns,
    )
    ask = exchange.Join(
        id=parts.id,
        secret=parts.secret,
        csr=csr,
        log_public=log_public,
        log_proof=log_proof,
        name=owner.uri if owner else None,
    )
    answer = verified.post("/v1/join", ask, deadline_s=deadline_s)
    grant = exchange.decode(answer, type=exchange.Grant, whose=f"answer of {address}")
    return Identity.establish(
        folder,
        certificate=grant.certificate.encode(),
        ca=certificates.pem(ca),
        denied=bytes(grant.denied),
        registrar=address,
    )


def request(folder: Path, *, party: str, role: Role, federation: str) -> Path:
    """Make keys in `folder` and a request file beside them, for a registrar without a line to it.

    The file holds public keys only. Returns its path. Raises ManifestError.
    """
    name = PartyName(federation=federation, party=party, role=role)
    csr, log_public, log_proof = exchange.proof_fields(Keys.obtain(folder).request())
    asked = _Asked(uri=name.uri, csr=csr, log_public=log_public, log_proof=log_proof)
    path = folder / f"{party}-{role.value}.request.json"
    files.write(path, msgspec.json.format(msgspec.json.encode(asked)), mode=files.PUBLIC)
    return path


def approve(folder: Path, *, request_file: Path, now: datetime | None = None) -> Path:
    """Certify a request file that an operator has looked at; return the certificate file beside it.

    Raises ManifestError (the file is none of ours) or IdentityError (its proofs or name are wrong).
    """
    authority = Authority.open(folder)
    asked = _read_asked(request_file)
    asking = certificates.Request(asked.csr.encode(), asked.log_public, asked.log_proof)
    name = PartyName.parse(asked.uri)
    if name.role is Role.REGISTRAR:
        raise IdentityError("role registrar is the federation's own; nobody may ask for it")
    leaf = authority.issue(
        name,
        public_key=certificates.read_request(asking),
        log_public=asking.log_public,
        now=now or datetime.now(UTC),
    )
    given = _Given(
        certificate=certificates.pem(leaf).decode("ascii"),
        ca=certificates.pem(authority.ca).decode("ascii"),
        denied=msgspec.Raw(authority.denied_json),
        registrar=authority.registrar,
    )
    path = request_file.with_name(f"{name.party}-{name.role.value}.certificate.json")
    files.write(path, msgspec.json.format(msgspec.json.encode(given)), mode=files.PUBLIC)
    return path


def asked_name(request_file: Path) -> PartyName:
    """Whom a request file asks to be; an operator looks at it before approving. Raises as `approve`."""
    return PartyName.parse(_read_asked(request_file).uri)


def install(folder: Path, *, certificate_file: Path, pin: str | None = None) -> Identity:
    """Take over the certificate file that answers this folder's request.

    pin: SHA-256 of the CA's key in hex, as its people read it out; without it the file's bearer is
    trusted. Raises ManifestError or IdentityError.
    """
    given = _decode(files.read(certificate_file), type_=_Given, path=certificate_file)
    ca = certificates.read_pem(given.ca.encode(), whose=f"CA in {certificate_file}")
    if pin is not None and not hmac.compare_digest(
        certificates.pin_of(ca).encode(), pin.strip().lower().encode()
    ):
        raise IdentityError(
            f"{certificate_file} carries the wrong CA: its key is {certificates.pin_of(ca)}; "
            f"expected {pin[:64]}"
        )
    return Identity.establish(
        folder,
        certificate=given.certificate.encode(),
        ca=given.ca.encode(),
        denied=bytes(given.denied),
        registrar=given.registrar,
    )


_Pem = Annotated[str, msgspec.Meta(max_length=8_192)]
_File = TypeVar("_File")


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uri: Annotated[str, msgspec.Meta(max_length=160)]
    csr: _Pem
    log_public: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    log_proof: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    certificate: _Pem
    ca: _Pem
    denied: msgspec.Raw
    registrar: Annotated[str, msgspec.Meta(max_length=300)] | None


def _read_asked(path: Path) -> _Asked:
    data = files.read(path, limit_bytes=exchange.MAX_ASK_BYTES)
    return _decode(data, type_=_Asked, path=path)


def _decode(data: bytes, *, type_: type[_File], path: Path) -> _File:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} is not one of ours: {error}") from None
