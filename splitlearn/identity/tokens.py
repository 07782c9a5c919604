"""Join tokens: one use, a short life, bound to one party and role, pinned to the CA's key.

A token is `sl1.<id>.<secret>.<sha256 of the CA's SubjectPublicKeyInfo>`. It travels outside of this
software, from one person to another. The federation's folder keeps the secret's hash only.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import files
from splitlearn.identity.authority import Authority
from splitlearn.identity.names import PartyName
from splitlearn.roles import Role

__all__ = ["MAX_TTL_S", "Token", "invite", "redeem"]

# A token that waits longer than a week is one that nobody will use, or that somebody else found.
MAX_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True)
class Token:
    """A token taken apart. pin: SHA-256 of the CA's key in hex."""

    id: str
    secret: str = field(repr=False)
    pin: str

    @classmethod
    def parse(cls, text: str) -> "Token":
        """Read a token that a user pasted. Raises ManifestError, which does not quote it."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise ManifestError(
                "this is not a join token: expected sl1.ID.SECRET.PIN on one line, just as "
                "splitlearn federation invite printed it"
            )
        return cls(id=match["id"], secret=match["secret"], pin=match["pin"])


def invite(
    folder: Path, *, party: str, role: Role, ttl_s: float = 3600, now: datetime | None = None
) -> str:
    """Make a token for `party` in `role`, good for one join within `ttl_s` seconds; return it.

    Raises ManifestError for a misspelt name, a denied party or a life outside (0, MAX_TTL_S].
    """
    if not 0 < ttl_s <= MAX_TTL_S:
        raise ManifestError(
            f"a token's life of {ttl_s} s: expected more than 0, at most {MAX_TTL_S}"
        )
    authority = Authority.open(folder)
    name = authority.name(party=party, role=role)
    if role is Role.REGISTRAR:
        raise ManifestError("role registrar is the federation's own; invite another role")
    if name.uri in authority.denied.uris:
        raise ManifestError(f"{name.uri} is on the deny-list; invite the party under another name")
    moment = (now or datetime.now(UTC)).timestamp()
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(24)
    record = _Record(digest=_digest(secret), party=party, role=role, expires=moment + ttl_s)
    with files.locked(folder):
        kept = {key: old for key, old in _read(folder).items() if old.expires > moment - MAX_TTL_S}
        if len(kept) >= _MAX_TOKENS:
            raise ManifestError(f"{folder} holds {_MAX_TOKENS} tokens already; let some expire")
        _write(folder, kept | {token_id: record})
    return f"sl1.{token_id}.{secret}.{authority.pin}"


def redeem(
    folder: Path,
    *,
    token_id: str,
    secret: str,
    federation: str,
    expected: str | None,
    now: datetime,
) -> PartyName:
    """Use a token up; return whom it was made for. All checks and the mark are under one lock.

    expected: URI that the asker believes to be, or None; a mismatch leaves the token unused.
    Raises IdentityError: unknown or wrong (not told apart), used, expired, or for another party.
    """
    with files.locked(folder):
        records = _read(folder)
        record = records.get(token_id, _NOBODY)
        # Compare even for an unknown id, so that time tells nobody which ids exist.
        right = hmac.compare_digest(record.digest, _digest(secret))
        if record is _NOBODY or not right:
            raise IdentityError("join token is wrong or unknown here; ask for a new invitation")
        if record.used is not None:
            raise IdentityError(
                f"join token for {record.role} {record.party} was used at {_moment(record.used)}; "
                "if that was not you, tell the registrar's people, else ask for a new invitation"
            )
        if now.timestamp() >= record.expires:
            raise IdentityError(
                f"join token for {record.role} {record.party} expired at "
                f"{_moment(record.expires)}; ask for a new invitation"
            )
        name = PartyName(federation=federation, party=record.party, role=record.role)
        if expected is not None and expected != name.uri:
            raise IdentityError(f"join token is for {name.uri}, not for {expected[:160]}")
        used = msgspec.structs.replace(record, used=now.timestamp())
        _write(folder, records | {token_id: used})
    return name


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """digest: SHA-256 of the secret in hex. expires, used: seconds since 1970."""

    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    party: str
    role: Role
    expires: float
    used: float | None = None


_TOKEN = re.compile(
    r"sl1\.(?P<id>[0-9a-f]{16})\.(?P<secret>[A-Za-z0-9_-]{32})\.(?P<pin>[0-9a-f]{64})"
)
_TOKENS = "tokens.json"
# About 200 bytes each: 2 MiB, within files.MAX_FILE_BYTES.
_MAX_TOKENS = 10_000


def _digest(secret: str) -> str:
    # 192 random bits need no salt and no slow hash.
    return hashlib.sha256(secret.encode()).hexdigest()


_NOBODY = _Record(digest=_digest(""), party="", role=Role.AUDITOR, expires=0.0)


def _read(folder: Path) -> dict[str, _Record]:
    path = folder / _TOKENS
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(files.read(path), type=dict[str, _Record])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ManifestError(f"{path} is not one of ours") from None


def _write(folder: Path, records: dict[str, _Record]) -> None:
    files.write(folder / _TOKENS, msgspec.json.encode(records))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
