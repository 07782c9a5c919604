"""What a codec is: float32 rows in, named little-endian parts out, and back again, strictly.

Decoding is a pure function of one message; encoding too, but for the codecs that `remembers` of the
manifest room names, which start from the message before. Only `delta.About` knows which message it serves.
A codec never trusts a peer's parts: `decode` first holds them against `layout`,
which follows from rows and width alone, so that nothing is allocated from a claim of the peer.
Also the one place where a torch tensor becomes a Part and a Part becomes a torch tensor.

N rows, D width
"""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES
from splitlearn.wire.tensors import ITEM_BYTES, Part

__all__ = ["Codec", "Identity", "Slot", "bounded", "check", "to_part", "to_tensor"]


class Slot(NamedTuple):
    """One part that a codec writes. `shape` is None where it depends on the content (entropy coding)."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


class Codec(Protocol):
    """Rows to parts and back. NaN and infinity are the gate's business and stop a run before this."""

    @property
    def name(self) -> str:
        """The chain as the job file writes it, such as `int8+zstd`."""

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        """Parts exactly as `layout` declares them. They may share memory with x_ND."""

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        """Float32 (rows, width) that shares no memory with the parts; WireError for any deviation."""

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        """The parts of a message of rows x width, in order."""


class Identity:
    """Float32 as it is, bit for bit, NaN payloads and negative zeros included.

    >>> x = torch.tensor([[1.5, -0.0]])
    >>> Identity().decode(Identity().encode(x), rows=1, width=2)
    tensor([[1.5000, -0.0000]])
    """

    name = "identity"

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        return (to_part("x", x_ND.detach().to(torch.float32)),)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        check(parts, self.layout(rows=rows, width=width))
        return to_tensor(parts[0])

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        return (Slot("x", "F32", (rows, width)),)


def bounded(rows: int, width: int) -> None:
    """WireError for more numbers than a frame has bytes: codecs that write less than a byte a number ask.

    Else a short message would make the peer allocate any amount.
    """
    if rows * width > MAX_FRAME_BYTES:
        raise WireError(
            f"a message of {rows} rows of {width} numbers is over the {MAX_FRAME_BYTES} numbers that "
            "one may have; raise schedule.micro_batches or lower data.max_length in the job file"
        )


def check(parts: Sequence[Part], layout: Sequence[Slot]) -> None:
    """WireError unless names, dtypes, shapes and byte counts are those of the layout, in its order."""
    if len(parts) != len(layout):
        names = ", ".join(slot.name for slot in layout)
        raise WireError(
            f"the peer's payload has {len(parts)} parts where the agreed codec writes {len(layout)} ({names})"
        )
    for part, slot in zip(parts, layout, strict=True):
        shape = part.shape if slot.shape is None and len(part.shape) == 1 else slot.shape
        if (part.name, part.dtype, part.shape) != (slot.name, slot.dtype, shape):
            wanted = "any length" if slot.shape is None else f"shape {slot.shape}"
            raise WireError(
                f"the peer's payload has part {part.name!r} of {part.dtype} {part.shape} where the "
                f"agreed codec writes {slot.name!r} of {slot.dtype} and {wanted}"
            )
        if len(part.data) != math.prod(part.shape) * ITEM_BYTES[part.dtype]:
            raise WireError(
                f"the peer's part {part.name!r} has {len(part.data)} bytes, "
                f"which {part.dtype} of shape {part.shape} does not take"
            )


def to_part(name: str, x: Tensor) -> Part:
    """The tensor's bytes, little endian, C order; shares memory with a contiguous CPU tensor.

    Serialise the part before the tensor is changed in place.
    """
    assert x.dtype in _NAMES, f"tensor {name!r} is {x.dtype}; the wire carries {', '.join(_DTYPES)}"
    bytes_B = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Part(
        name=name,
        dtype=_NAMES[x.dtype],
        shape=tuple(x.shape),
        data=bytes_B.numpy().data,
    )


def to_tensor(part: Part) -> Tensor:
    """A CPU tensor that owns its memory. Shape and bytes were held against each other by the wire room."""
    dtype = _DTYPES[part.dtype]
    if not part.data:
        return torch.empty(part.shape, dtype=dtype)
    return torch.frombuffer(bytearray(part.data), dtype=dtype).reshape(part.shape)


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

assert sys.byteorder == "little", "tensors are put on the wire as they lie in memory"
