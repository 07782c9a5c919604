"""Rows as JPEG writes pictures: one step for all numbers, small ones to zero, entropy coding.

One step for a whole message spends bits where they lower the error most, whatever the size of a column or a
row. It is chosen by what the message may lose (`error`: norm of the difference over the norm) or by what
it may take (`per_row`: bytes a row). Numbers are banded by column or by row, whichever takes less: an
encoder's columns differ in spread, a gradient's rows do.

N rows, D width; L lines of I items, as they lie in memory; B bands, M numbers in each
"""

import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitlearn.codecs import bands
from splitlearn.codecs.base import Slot, bounded, check
from splitlearn.codecs.basis import Basis
from splitlearn.codecs.rounding import Rounded, rounded, whole
from splitlearn.codecs.steps import LEAST_STEP, MOST_STEP, Found, found, losing, usable
from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

__all__ = ["Transform"]


class Transform:
    """`transform-e0.13`: a relative error of about 0.13; `transform-b24`: at most 24 bytes a row.

    Give `error` or `per_row`. The error comes within a few percent of the one asked for, unless the message's
    largest number is over 30,000 steps. Bytes are those of the payload, and more than asked for only
    where all but nothing is zero already. Denormals become zero.

    basis: rows are written in it, `pca-transform-...`; an encoder's take a fifth less so.
    """

    def __init__(
        self,
        name: str,
        *,
        error: float | None = None,
        per_row: float | None = None,
        basis: Basis | None = None,
    ) -> None:
        assert (error is None) != (per_row is None), "a step is chosen by one thing"
        self.name = name
        self._error, self._per_row, self._basis = error, per_row, basis

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32).contiguous()
        bounded(*x_ND.shape)
        largest = _largest(x_ND)
        spread = _spread(x_ND, largest=largest)
        message = _Message(x_ND, _ROWS, largest)
        if self._basis is not None:
            z_DN = self._basis.columns(x_ND)
            message = _Message(z_DN, _COLUMNS, _largest(z_DN))
        if not math.isfinite(largest):
            # No reader takes it: the gate's second look refuses what cannot be written.
            data = _written(message, _zeros(message.x_LI), step=math.nan)
        elif message.largest < _LEAST:
            data = _written(message, _zeros(message.x_LI), step=1.0)
        elif self._error is not None:
            data = _close(message, allowed=self._error * spread)
        else:
            assert self._per_row is not None
            data = _squeezed(message, limit=self._per_row * x_ND.shape[0])
        return (Part(name="bands", dtype="U8", shape=(len(data),), data=data),)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        data = memoryview(parts[0].data)
        if len(data) < _HEAD.size:
            raise WireError(f"the peer's transform payload has {len(data)} bytes and no head")
        step, axis = _HEAD.unpack(data[: _HEAD.size])
        if axis not in {_COLUMNS, _ROWS} or not LEAST_STEP <= step <= MOST_STEP:
            raise WireError(f"the peer's transform payload has step {step} and banding {axis}")
        by_column = axis == _COLUMNS
        count, items = (width, rows) if by_column else (rows, width)
        banded = bands.read(data[_HEAD.size :], bands=count, items=items)
        # A basis takes columns as they are; without one they are turned while a number is one byte.
        turned = by_column and self._basis is None
        near_BM, at = torch.from_numpy(banded.near_BM), banded.at
        if turned:
            near_BM, at = _turned(near_BM), at % max(rows, 1) * width + at // max(rows, 1)
        y_BM = torch.mul(near_BM, step)
        y_BM.view(-1)[torch.from_numpy(at)] = torch.from_numpy(banded.beside).mul(step)
        if step > _MOST / bands.LARGEST:
            y_BM.clamp_(-_MOST, _MOST)
        y_ND = y_BM.t() if by_column and not turned else y_BM
        return y_ND if self._basis is None else self._basis.out_of(y_ND, width=width)

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        del rows, width  # the length depends on the content
        return (Slot("bands", "U8", None),)


_HEAD = struct.Struct("<fB")
_COLUMNS, _ROWS = 0, 1

_MOST = float(np.finfo(np.float32).max)
# Below this the finest step would not be normal; no gradient of a run that learns comes near it.
_LEAST = 2.0**-110
# Numbers that a step is tried on. Errors are bounded by the step, so that a sample tells them well even
# where a few rows hold most of the message.
_SAMPLE = 32_768
_USUAL = 1e-12
# Rows that bytes are estimated from.
_SAMPLE_ROWS = 256
_TRIES = 8
_CLOSE = 0.01
_FAR = 1.05


class _Message(NamedTuple):
    """Lines of items as they lie in memory; `lines` says whether they are columns or rows."""

    x_LI: Tensor
    lines: int
    largest: float


def _close(message: _Message, *, allowed: float) -> bytes:
    """The message at about that error, the root of the mean square."""
    x_LI, largest = message.x_LI, message.largest
    stride = max(1, x_LI.numel() // _SAMPLE)
    while math.gcd(stride, x_LI.shape[1]) > 1:  # else some items would never be looked at
        stride += 1
    step = losing(allowed, x_LI.view(-1)[::stride], largest=largest)
    numbers = rounded(x_LI, step=step, largest=largest)
    # A sample misses a few numbers that are far larger than all others.
    if stride > 1 and numbers.lost * step > _FAR * allowed:
        step = losing(allowed, x_LI.view(-1), largest=largest)
        numbers = rounded(x_LI, step=step, largest=largest)
    return _written(message, numbers, step=step)


def _written(message: _Message, numbers: Rounded, *, step: float) -> bytes:
    lines, items = numbers.near_LI.shape
    x_LI = message.x_LI
    other = _ROWS + _COLUMNS - message.lines
    by_line = _bits(numbers.line_L, items=items), message.lines
    by_item = _bits(numbers.item_I, items=lines), other
    if min(by_line, by_item) == by_line:
        data = bands.pack(
            numbers.near_LI.numpy(),
            numbers.line_L,
            exact=lambda b, m: _exact(x_LI[b, m], step=step),
        )
        return _HEAD.pack(step, message.lines) + data
    data = bands.pack(
        _turned(numbers.near_LI).numpy(),
        numbers.item_I,
        exact=lambda b, m: _exact(x_LI[m, b], step=step),
    )
    return _HEAD.pack(step, other) + data


def _turned(near_LI: Tensor) -> Tensor:
    """(I, L), four numbers at a time: two thirds of what single bytes take."""
    lines, items = near_LI.shape
    fours, spare = -(-items // 4), -items % 4
    if spare:
        near_LI = torch.nn.functional.pad(near_LI, (0, spare))
    fours_LF = near_LI.reshape(-1).view(torch.int32).view(lines, fours)
    flat = fours_LF.t().reshape(-1).view(torch.int8)
    return flat.view(fours, lines, 4).transpose(1, 2).contiguous().view(4 * fours, lines)[:items]


def _zeros(x_LI: Tensor) -> Rounded:
    lines, items = x_LI.shape
    none_LI = torch.zeros(lines, items, dtype=torch.int8)
    return Rounded(none_LI, np.zeros(lines, np.float32), np.zeros(items, np.float32), 0.0)


def _exact(x_E: Tensor, *, step: float) -> NDArray[np.int32]:
    return whole(x_E, step=step).numpy().astype(np.int32)


def _bits(mean_B: NDArray[np.float32], *, items: int) -> float:
    """About what bands of these mean sizes take: two-sided geometric numbers, and half a byte a band."""
    m_B = mean_B[mean_B > 0].astype(np.float64)
    each_B = (1 + m_B) * np.log2(1 + m_B) - m_B * np.log2(m_B) + m_B / (1 + m_B)
    return float(each_B.sum()) * items + 4.0 * len(mean_B)


def _largest(x_LI: Tensor) -> float:
    if not x_LI.numel():
        return 0.0
    least, most = torch.aminmax(x_LI)
    return max(-float(least), float(most))


def _spread(x_LI: Tensor, *, largest: float) -> float:
    """The root of the mean square, in float32 where its squares are normal numbers."""
    if not largest:
        return 0.0
    usual = _USUAL < largest < 1 / _USUAL
    norm = torch.linalg.vector_norm(x_LI, dtype=torch.float32 if usual else torch.float64)
    return float(norm) / math.sqrt(x_LI.numel())


def _squeezed(message: _Message, *, limit: float) -> bytes:
    """The finest of a few tries that takes at most `limit` bytes."""
    x_LI, largest = message.x_LI, message.largest
    written = [_written(message, _zeros(x_LI), step=1.0)]
    if len(written[0]) >= limit:
        return written[0]

    def size(step: float) -> float:
        step = usable(step, largest=largest)
        written.append(_written(message, rounded(x_LI, step=step, largest=largest), step=step))
        return len(written[-1])

    wanted, bounds = limit * (1 - _CLOSE), (usable(0.0, largest=largest), 2.0 * largest)
    first = found(
        _estimated(message),
        wanted=wanted,
        first=Found(_spread(x_LI, largest=largest), -1.0),
        bounds=bounds,
        close=2 * _CLOSE,
        tries=_TRIES,
    )
    found(size, wanted=wanted, first=first, bounds=bounds, close=_CLOSE, tries=_TRIES)
    return max((data for data in written if len(data) <= limit), key=len)


def _estimated(message: _Message) -> Callable[[float], float]:
    """About the bytes that a step takes, from some of the rows; most often within a quarter."""
    x_LI, largest = message.x_LI, message.largest
    by_row = message.lines == _ROWS
    stride = max(1, x_LI.shape[0 if by_row else 1] // _SAMPLE_ROWS)
    some_LI = (x_LI[::stride] if by_row else x_LI[:, ::stride]).contiguous()
    each = x_LI.numel() / some_LI.numel() / 8

    def size(step: float) -> float:
        numbers = rounded(some_LI, step=usable(step, largest=largest), largest=largest)
        by_line = _bits(numbers.line_L, items=some_LI.shape[1])
        return each * min(by_line, _bits(numbers.item_I, items=some_LI.shape[0]))

    return size
