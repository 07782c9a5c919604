"""What records are made of: how each begins, who a party is, what a tensor looked like, bounded fields."""

import math
from typing import Annotated, Literal

import msgspec

from splitlearn.roles import Role
from splitlearn.wire.tensors import Part

__all__ = [
    "RECORD_VERSION",
    "Bytes",
    "Conversation",
    "Digest",
    "Direction",
    "Entry",
    "PartShape",
    "Party",
    "Positive",
    "Share",
    "Signature",
]

RECORD_VERSION: Literal[1] = 1

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Direction = Literal["in", "out"]
Conversation = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Signature = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Entry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
):
    """What every record begins with. The log fills in the last two.

    v: record version; seq: index of the line in the log; time: this machine's clock in seconds since
    1970, advisory only.
    """

    v: Literal[1] = RECORD_VERSION
    seq: int = 0
    time: float = 0.0


class Party(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """id: URI of the party's certificate."""

    id: str
    role: Role


class PartShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor of a payload as it lies on the wire. `data_bytes` long."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data_bytes: Bytes

    @classmethod
    def of(cls, part: Part) -> "PartShape":
        """A part of a container."""
        return cls(
            name=part.name,
            dtype=part.dtype,
            shape=part.shape,
            data_bytes=memoryview(part.data).nbytes,
        )

    @classmethod
    def before_encoding(cls, shape: tuple[int, ...]) -> "PartShape":
        """Float32 rows that were stopped before anything was written."""
        return cls(name="rows", dtype="F32", shape=shape, data_bytes=4 * math.prod(shape))
