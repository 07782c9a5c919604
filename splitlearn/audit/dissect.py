"""A kept frame taken apart: what its tensors are and how their values are spread, never the values.

Needs no torch. What a codec compressed is shown as the bytes that it is: unpacking needs the codec's
room, and with it torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitlearn.errors import AuditError, WireError
from splitlearn.roles import Kind
from splitlearn.wire import frames, tensors
from splitlearn.wire.frames import BEARS_TENSORS
from splitlearn.wire.messages import StepTensor, said
from splitlearn.wire.tensors import Part

__all__ = ["BINS", "LEAST_VALUES", "Dissection", "Histogram", "PartView", "dissect", "sparkline"]

BINS = 32
# A histogram of fewer values would be a list of them.
LEAST_VALUES = 64


@dataclass(frozen=True)
class Histogram:
    """Counts of finite values in BINS bins of one width. low, high: the ends, rounded outwards."""

    low: float
    high: float
    counts: tuple[int, ...]
    not_finite: int


@dataclass(frozen=True)
class PartView:
    """One tensor of a frame. histogram: none for one of fewer than LEAST_VALUES values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data_bytes: int
    histogram: Histogram | None


@dataclass(frozen=True)
class Dissection:
    """One frame. meta: names of the fields that travel beside the tensors. place: where in the run."""

    kind: Kind
    message: int
    wire_bytes: int
    meta: tuple[str, ...]
    place: str
    parts: tuple[PartView, ...]


def dissect(raw: bytes) -> Dissection:
    """Take the wire bytes of one message apart. Raises AuditError where they are no legal frame."""
    try:
        frame = frames.decode(raw)
        parts = tensors.decode(frame.payload) if frame.kind in BEARS_TENSORS else ()
    except WireError as error:
        raise AuditError(f"what was kept is not a legal frame: {error}") from error
    meta = frame.meta
    place = ""
    if isinstance(meta, StepTensor):
        place = f"{meta.phase} step {meta.step}, micro-batch {meta.micro_batch}"
    return Dissection(
        kind=frame.kind,
        message=frame.seq,
        wire_bytes=len(raw),
        meta=said(meta),
        place=place,
        parts=tuple(_view(part) for part in parts),
    )


def sparkline(counts: Sequence[int]) -> str:
    """One character a bin, as high as its count; a bin with anything in it is never blank.

    >>> sparkline([0, 1, 50, 100])
    ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(
        _BARS[math.ceil(len(_BARS[1:]) * count / most)] if most else " " for count in counts
    )


_BARS = " ▁▂▃▄▅▆▇█"


def _view(part: Part) -> PartView:
    return PartView(
        name=part.name,
        dtype=part.dtype,
        shape=part.shape,
        data_bytes=memoryview(part.data).nbytes,
        histogram=_histogram(part) if math.prod(part.shape) >= LEAST_VALUES else None,
    )


def _histogram(part: Part) -> Histogram | None:
    values = _values(part)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    low, high = _outwards(float(finite.min()), up=False), _outwards(float(finite.max()), up=True)
    if not math.isfinite(high - low):
        return None
    if low == high:  # all the same: one bin of any width
        high = low + 1.0
    counts, _ = np.histogram(finite, bins=BINS, range=(low, high))
    return Histogram(
        low=low,
        high=high,
        counts=tuple(int(count) for count in counts),
        not_finite=int(values.size - finite.size),
    )


def _values(part: Part) -> NDArray[np.float32] | NDArray[np.float64]:
    array = tensors.to_array(part).reshape(-1)
    if part.dtype == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype.itemsize == 8:
        return array.astype(np.float64)
    return array.astype(np.float32)


def _outwards(value: float, *, up: bool) -> float:
    """Two digits, away from the middle, so that an end is not a value that was sent."""
    if abs(value) < _TINY:
        inwards = value <= 0 if up else value >= 0
        return 0.0 if inwards else math.copysign(_TINY, value)
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    rounded = (math.ceil(value / unit) if up else math.floor(value / unit)) * unit
    # The product may fall short of the value by its last bit.
    return max(rounded, value) if up else min(rounded, value)


_TINY = 1e-300
