"""Federations and identities for tests, made in a few milliseconds and without a network."""

from datetime import UTC, datetime
from pathlib import Path

from splitlearn.identity import Authority, Identity, create_federation
from splitlearn.identity.certificates import pem
from splitlearn.identity.party import Keys
from splitlearn.roles import Role

__all__ = ["make_authority", "make_identity"]


def make_authority(tmp_path: Path, *, federation: str = "fed.example") -> Authority:
    """The federation that lies in `tmp_path`, made at the first call."""
    folder = tmp_path / f"federation-{federation}"
    if folder.exists():
        return Authority.open(folder)
    return create_federation(folder, name=federation)


def make_identity(
    tmp_path: Path,
    party: str,
    role: Role | str,
    *,
    federation: str = "fed.example",
    authority: Authority | None = None,
    not_before: datetime | None = None,
    not_after: datetime | None = None,
    registrar: str | None = None,
) -> Identity:
    """A party's identity in `tmp_path/<party>-<role>`, of `authority` or of tmp_path's federation.

    Called again for the same party and role it replaces the certificate and keeps the keys.
    """
    role = Role(role)
    authority = authority or make_authority(tmp_path, federation=federation)
    folder = tmp_path / f"{party}-{role.value}"
    keys = Keys.obtain(folder)
    leaf = authority.issue(
        authority.name(party=party, role=role),
        public_key=keys.certificate.public_key(),
        log_public=keys.log.public_key().public_bytes_raw(),
        now=datetime.now(UTC),
        not_before=not_before,
        not_after=not_after,
    )
    return Identity.establish(
        folder,
        certificate=pem(leaf),
        ca=pem(authority.ca),
        denied=authority.denied_json,
        registrar=registrar,
    )
