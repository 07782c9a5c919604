"""Tensors as bytes: a container in the safetensors layout, written in one join, read without a copy.

    0        8                      8 + H                                    end
    | H u64le | header: JSON, H bytes | buffer 0 | buffer 1 | ... | buffer n-1 |

    {"x":{"dtype":"I8","shape":[37,384],"data_offsets":[0,14208]},"scale":{...}} + spaces

Any safetensors tool opens it. The reader is stricter than the format: it takes only the bytes that
`encode` writes for the same parts, so a container has one spelling and no room for anything else: no
`__metadata__`, no gap, no overlap, no trailing byte, no name twice, no other order of keys.
Nothing is allocated from a claimed size: a claim is compared with the bytes that are there.
"""

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from splitlearn.errors import WireError
from splitlearn.wire.limits import (
    MAX_DIM,
    MAX_HEADER_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_NDIM,
    MAX_TENSORS,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ITEM_BYTES", "Part", "decode", "encode", "from_array", "to_array"]

# Bytes of one element. A dtype that is not here cannot travel.
ITEM_BYTES: dict[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True)
class Part:
    """One named tensor: `data` holds its elements little endian in C order. Never shown in a repr."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview = field(repr=False)


def encode(parts: Sequence[Part]) -> bytes:
    """One container with `parts` in the given order. WireError for a part that may not travel.

    >>> len(encode([Part("x", "U8", (2,), b"ab")]))
    66
    """
    _check(parts)
    return b"".join([_header(parts), *(part.data for part in parts)])


def decode(payload: bytes | memoryview) -> tuple[Part, ...]:
    """The parts of a container, in its order, as read-only views into `payload`.

    WireError for every deviation from what `encode` writes.

    >>> decode(encode([Part("x", "U8", (2,), b"ab")]))
    (Part(name='x', dtype='U8', shape=(2,)),)
    """
    view = memoryview(payload).toreadonly()
    start = _header_end(view)
    parts: list[Part] = []
    end = start
    for name, entry in _entries(view[_PREFIX_BYTES:start]).items():
        first, end = (start + offset for offset in entry.data_offsets)
        parts.append(Part(name, entry.dtype, entry.shape, view[first:end]))
    _check(parts)
    if end != len(view):
        raise WireError(
            f"a tensor container of {len(view)} bytes describes {end}; expected every byte to belong "
            "to a tensor; the peer's encoder is at fault"
        )
    if _header(parts) != view[:start]:
        raise WireError(
            "the header of a tensor container is not the one that its tensors have; expected each name "
            "once, offsets without gap or overlap, and no other spelling; the peer's encoder is at fault"
        )
    return tuple(parts)


def from_array(name: str, array: "NDArray[np.generic]") -> Part:
    """A part that shares the array's memory where its layout allows it; uint16 stands for BF16."""
    import numpy as np  # noqa: PLC0415  (a fifth of a second that --help need not wait)

    dtype = _OF_NUMPY.get(f"{array.dtype.kind}{array.dtype.itemsize}")
    if dtype is None:
        raise WireError(
            f"array {name!r} is of {array.dtype}, which cannot travel; expected one of "
            f"{', '.join(ITEM_BYTES)} (BF16 as uint16); our own codec is at fault"
        )
    little = np.ascontiguousarray(array, dtype=_TO_NUMPY[dtype])
    return Part(name, dtype, array.shape, little.reshape(-1).view(np.uint8).data.toreadonly())


def to_array(part: Part) -> "NDArray[np.generic]":
    """A read-only view of a checked part, BF16 as uint16. It may be unaligned: copy it for torch."""
    import numpy as np  # noqa: PLC0415  (as above)

    data = memoryview(part.data).toreadonly()
    return np.frombuffer(data, dtype=_TO_NUMPY[part.dtype]).reshape(part.shape)


_TO_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U8": "<u1",
    "BOOL": "<b1",
}
_OF_NUMPY = {code[1:]: dtype for dtype, code in _TO_NUMPY.items()}

_PREFIX = struct.Struct("<Q")
_PREFIX_BYTES = _PREFIX.size
# The header is padded with spaces so that the first buffer starts on a multiple of this many bytes.
_ALIGN_BYTES = 8
_NAME = re.compile(rf"(?!__metadata__\Z)[A-Za-z0-9_.]{{1,{MAX_NAME_CHARACTERS}}}\Z")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor in the header. Offsets count from the header's end; the end one is exclusive."""

    dtype: Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
    shape: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)], ...],
        msgspec.Meta(max_length=MAX_NDIM),
    ]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


_HEADER = msgspec.json.Decoder(Annotated[dict[str, _Entry], msgspec.Meta(max_length=MAX_TENSORS)])


def _header_end(view: memoryview) -> int:
    if len(view) < _PREFIX_BYTES:
        raise WireError(
            f"a tensor container has {len(view)} bytes; expected at least {_PREFIX_BYTES}; "
            "the peer's encoder is at fault"
        )
    (size,) = _PREFIX.unpack_from(view)
    if size > min(MAX_HEADER_BYTES, len(view) - _PREFIX_BYTES):
        raise WireError(
            f"a tensor container of {len(view)} bytes claims a header of {size} bytes; expected at most "
            f"{MAX_HEADER_BYTES} and no more than there are; the peer's encoder is at fault"
        )
    return _PREFIX_BYTES + int(size)


def _entries(header: memoryview) -> dict[str, _Entry]:
    try:
        return _HEADER.decode(header)
    except msgspec.MsgspecError as error:
        raise WireError(
            f"the header of a tensor container is not legal ({ascii(str(error))[1:-1][:160]}); "
            "the peer's encoder is at fault"
        ) from None


def _check(parts: Sequence[Part]) -> None:
    if len(parts) > MAX_TENSORS:
        raise WireError(f"{len(parts)} tensors in one container; expected at most {MAX_TENSORS}")
    names = set()
    for part in parts:
        if not _NAME.match(part.name) or part.name in names:
            raise WireError(
                f"tensor name {part.name[:MAX_NAME_CHARACTERS]!a} is not legal or stands twice; expected "
                f"1 to {MAX_NAME_CHARACTERS} characters A-Z a-z 0-9 _ . and no __metadata__"
            )
        names.add(part.name)
        _check_layout(part)


def _check_layout(part: Part) -> None:
    if part.dtype not in ITEM_BYTES:
        raise WireError(
            f"tensor {part.name} has dtype {part.dtype[:16]!a}; expected one of {', '.join(ITEM_BYTES)}"
        )
    if len(part.shape) > MAX_NDIM or not all(0 <= size <= MAX_DIM for size in part.shape):
        raise WireError(
            f"tensor {part.name} has shape {part.shape[: MAX_NDIM + 1]}; expected at most {MAX_NDIM} "
            f"dimensions of 0 to {MAX_DIM} elements"
        )
    there = memoryview(part.data).nbytes
    expected = math.prod(part.shape) * ITEM_BYTES[part.dtype]
    if there != expected:
        raise WireError(
            f"tensor {part.name} has {there} bytes; expected {expected} for {part.dtype} of shape "
            f"{part.shape}"
        )
    # Any other byte would be a hidden channel, and undefined behaviour in whoever trusts it.
    if part.dtype == "BOOL" and bytes(part.data).strip(b"\x00\x01"):
        raise WireError(f"tensor {part.name} is BOOL but holds bytes other than 0 and 1")


def _header(parts: Sequence[Part]) -> bytes:
    """Prefix, JSON and padding for checked parts."""
    entries = []
    end = 0
    for part in parts:
        start, end = end, end + memoryview(part.data).nbytes
        shape = ",".join(map(str, part.shape))
        entries.append(
            f'"{part.name}":{{"dtype":"{part.dtype}","shape":[{shape}],"data_offsets":[{start},{end}]}}'
        )
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % _ALIGN_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise WireError(
            f"{len(parts)} tensors need a header of {len(text)} bytes; expected at most {MAX_HEADER_BYTES}; "
            "put them into several containers"
        )
    return _PREFIX.pack(len(text)) + text
