"""Who a party is: federation, party and role, as the URI and the DNS name in its certificate.

Names are lower-case and short, so that they fit a DNS label and can be read over a telephone. This
file judges spelling only; whether somebody may bear a name is for `judge.authorise`.
"""

import re
from dataclasses import dataclass

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.roles import Role

__all__ = ["PartyName", "check_federation", "check_party", "parse_role", "registrar_name"]


@dataclass(frozen=True, order=True)
class PartyName:
    """One party in one role. Raises ManifestError when a part is misspelt.

    >>> name = PartyName(federation="fed.example", party="bank", role=Role.COMPUTE)
    >>> name.uri
    'spiffe://fed.example/party/bank/role/compute'
    >>> name.dns
    'compute.bank.fed.example'
    >>> PartyName.parse(name.uri) == name
    True
    """

    federation: str
    party: str
    role: Role

    def __post_init__(self) -> None:
        check_federation(self.federation)
        check_party(self.party)

    @property
    def uri(self) -> str:
        """SPIFFE identifier: what both ends authorise."""
        return f"spiffe://{self.federation}/party/{self.party}/role/{self.role.value}"

    @property
    def dns(self) -> str:
        """What a dialler asks TLS to verify; no name server has to know it."""
        return f"{self.role.value}.{self.party}.{self.federation}"

    @classmethod
    def parse(cls, uri: str) -> "PartyName":
        """Read what `.uri` wrote. Raises IdentityError: the URI came from a certificate or a file."""
        match = _URI.fullmatch(uri)
        if match is None:
            raise IdentityError(f"{uri[:160]!r} is not spiffe://FEDERATION/party/NAME/role/ROLE")
        federation, party, role = match.groups()
        try:
            return cls(federation=federation, party=party, role=Role(role))
        except (ManifestError, ValueError) as error:
            raise IdentityError(f"{uri!r} names nobody: {error}") from None

    def __str__(self) -> str:
        return f"{self.role.value} {self.party}"


def check_party(party: str) -> str:
    """Return `party`, or raise ManifestError that says which letters are allowed."""
    if _LABEL.fullmatch(party) is None:
        raise ManifestError(
            f"party name {party[:80]!r}: expected 1 to 42 of a-z, 0-9 and '-', no '-' at either end"
        )
    return party


def check_federation(federation: str) -> str:
    """Return `federation`, or raise ManifestError that says which letters are allowed."""
    labels = federation.split(".")
    if len(federation) > _MAX_FEDERATION or any(_LABEL.fullmatch(part) is None for part in labels):
        raise ManifestError(
            f"federation name {federation[:80]!r}: expected at most {_MAX_FEDERATION} characters, "
            "labels of a-z, 0-9 and '-' joined by dots, as in 'hospitals.example'"
        )
    return federation


def parse_role(role: str) -> Role:
    """Read a role that a user wrote, or raise ManifestError that lists the roles there are."""
    try:
        return Role(role)
    except ValueError:
        raise ManifestError(
            f"role {role[:80]!r}: expected one of {', '.join(sorted(Role))}"
        ) from None


def registrar_name(federation: str) -> PartyName:
    """The name that a federation's registrar bears."""
    return PartyName(federation=federation, party="registrar", role=Role.REGISTRAR)


# A common name in X.509 holds 64 characters, and the CA's common name is the federation.
_MAX_FEDERATION = 64
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_URI = re.compile(r"spiffe://([^/]{1,64})/party/([^/]{1,42})/role/([a-z]{1,16})")
