"""What opens a round at a generator: where to bring ids, for which run, until when. Comes from outside.

Carried by whoever coordinates, so it holds nothing that decides what leaves: the terms of the round
come over the authenticated channel, from the discriminator itself.
"""

from typing import Annotated

import msgspec

from splitlearn.errors import WireError

__all__ = ["MAX_BYTES", "Summons", "parse_summons"]

# A summons has about 120 bytes.
MAX_BYTES = 4_096


class Summons(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """address: of the discriminator, host:port. number: of the round. deadline_s: from now on."""

    run: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")]
    number: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
    address: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:\[\]-]{3,300}\Z")]
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)]

    @property
    def encoded(self) -> bytes:
        """As it travels; `parse_summons` reads it."""
        return msgspec.json.encode(self)


def parse_summons(data: bytes) -> Summons:
    """Read a summons strictly. Raises WireError."""
    if len(data) > MAX_BYTES:
        raise WireError(f"a summons of {len(data)} bytes; expected {MAX_BYTES} at most")
    try:
        return msgspec.json.decode(data, type=Summons)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"a summons to a round is not one of ours: {error}") from None
