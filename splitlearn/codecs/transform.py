"""Rows as JPEG writes pictures: one step for all numbers, small ones to zero, entropy coding.

One step for a whole message spends bits where they lower the error most, whatever the size of a column or a
row. It is chosen by what the message may lose (`error`: norm of the difference over the norm) or by what
it may take (`per_row`: bytes a row). Numbers are banded by column or by row, whichever takes less: an
encoder's columns differ in spread, a gradient's rows do.

N rows, D width, B bands, M numbers in each
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitlearn.codecs import bands
from splitlearn.codecs.base import Slot, bounded, check
from splitlearn.codecs.basis import Basis
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
        spread = _spread(x_ND, largest=_largest(x_ND))
        if self._basis is not None:
            x_ND = self._basis.into(x_ND)
        largest = _largest(x_ND)
        if largest < _LEAST:
            data = _written(torch.zeros_like(x_ND), step=1.0)
        elif self._error is not None:
            data = _close(x_ND, allowed=self._error * spread, largest=largest)
        else:
            assert self._per_row is not None
            data = _squeezed(x_ND, limit=self._per_row * x_ND.shape[0], largest=largest)
        return (Part(name="bands", dtype="U8", shape=(len(data),), data=data),)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        data = memoryview(parts[0].data)
        if len(data) < _HEAD.size:
            raise WireError(f"the peer's transform payload has {len(data)} bytes and no head")
        step, axis = _HEAD.unpack(data[: _HEAD.size])
        if axis not in {_COLUMNS, _ROWS} or not _LEAST_STEP <= step <= _MOST_STEP:
            raise WireError(f"the peer's transform payload has step {step} and banding {axis}")
        count, items = (width, rows) if axis == _COLUMNS else (rows, width)
        banded = bands.read(data[_HEAD.size :], bands=count, items=items)
        near_ND, at = torch.from_numpy(banded.near_BM), banded.at
        if axis == _COLUMNS:
            near_ND = near_ND.t().contiguous()
            at = at % max(rows, 1) * width + at // max(rows, 1)
        y_ND = torch.mul(near_ND, step)
        y_ND.view(-1)[torch.from_numpy(at)] = torch.from_numpy(banded.beside).mul(step)
        if step > _MOST / bands.LARGEST:
            y_ND.clamp_(-_MOST, _MOST)
        return y_ND if self._basis is None else self._basis.out_of(y_ND, width=width)

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        del rows, width  # the length depends on the content
        return (Slot("bands", "U8", None),)


_HEAD = struct.Struct("<fB")
_COLUMNS, _ROWS = 0, 1

# A step's inverse, and the step itself, are normal float32 numbers.
_LEAST_STEP, _MOST_STEP = 2.0**-126, 2.0**126
_MOST = float(np.finfo(np.float32).max)
# Below this the finest step would not be normal; no gradient of a run that learns comes near it.
_LEAST = 2.0**-110
# Numbers go to zero up to 0.6 steps, and all others round down by as much: with what entropy coding saves it
# is the best trade between 0 and 0.2 on activations and gradients of a real encoder.
_DEAD = 0.1
# Numbers that a step is tried on. Errors are bounded by the step, so that a sample tells them well even
# where a few rows hold most of the message.
_USUAL = 1e-12
_SAMPLE = 16_384
_TRIES = 24
_TRIES_BYTES = 8
_CLOSE = 0.01
_FAR = 1.05


def _close(x_ND: Tensor, *, allowed: float, largest: float) -> bytes:
    """The message at about that error, the root of the mean square."""
    stride = max(1, x_ND.numel() // _SAMPLE)
    while math.gcd(stride, x_ND.shape[1]) > 1:  # else some columns would never be looked at
        stride += 1
    step = _step_for(x_ND.view(-1)[::stride], allowed=allowed, largest=largest)
    q_ND = _quantised(x_ND, step=step)
    # A sample misses a few numbers that are far larger than all others.
    lost = _spread(torch.sub(x_ND, q_ND, alpha=step), largest=largest)
    if stride > 1 and lost > _FAR * allowed:
        step = _step_for(x_ND.view(-1), allowed=allowed, largest=largest)
        q_ND = _quantised(x_ND, step=step)
    return _written(q_ND, step=step)


def _quantised(x_ND: Tensor, *, step: float) -> Tensor:
    q_ND = torch.mul(x_ND, 1.0 / step)
    return torch.nn.functional.softshrink(q_ND, _DEAD).round_()


def _written(q_ND: Tensor, *, step: float) -> bytes:
    rows, width = q_ND.shape
    if not q_ND.numel():
        none_BM = np.zeros((rows, width), np.float32)
        data = bands.pack(none_BM.astype(np.int8), none_BM, np.zeros(rows, np.float32))
        return _HEAD.pack(step, _ROWS) + data
    # Six times as fast as two norms of one dimension.
    size_ND = q_ND.abs()
    column_D = size_ND.sum(dim=0).div_(rows).numpy()
    row_N = size_ND.sum(dim=1).div_(width).numpy()
    near_ND = q_ND.clamp(-128, 127).to(torch.int8)
    if float(q_ND.amax()) > 127:
        near_ND[q_ND > 127] = -128
    by_column = _bits(column_D, items=rows) <= _bits(row_N, items=width)
    if by_column:
        near_BM, exact_BM, mean_B = near_ND.t().contiguous(), q_ND.t(), column_D
    else:
        near_BM, exact_BM, mean_B = near_ND, q_ND, row_N
    data = bands.pack(near_BM.numpy(), exact_BM.numpy(), mean_B)
    return _HEAD.pack(step, _COLUMNS if by_column else _ROWS) + data


def _bits(mean_B: NDArray[np.float32], *, items: int) -> float:
    """About what bands of these mean sizes take: two-sided geometric numbers, and half a byte a band."""
    m_B = mean_B[mean_B > 0].astype(np.float64)
    each_B = (1 + m_B) * np.log2(1 + m_B) - m_B * np.log2(m_B) + m_B / (1 + m_B)
    return float(each_B.sum()) * items + 4.0 * len(mean_B)


def _largest(x_ND: Tensor) -> float:
    if not x_ND.numel():
        return 0.0
    least, most = torch.aminmax(x_ND)
    return max(-float(least), float(most))


def _spread(x_ND: Tensor, *, largest: float) -> float:
    """The root of the mean square, in float32 where its squares are normal numbers."""
    if not largest:
        return 0.0
    usual = _USUAL < largest < 1 / _USUAL
    norm = torch.linalg.vector_norm(x_ND, dtype=torch.float32 if usual else torch.float64)
    return float(norm) / math.sqrt(x_ND.numel())


def _finest(largest: float) -> float:
    return max(largest / (bands.LARGEST - 1), _LEAST_STEP)


def _step_for(x_S: Tensor, *, allowed: float, largest: float) -> float:
    """The step that loses so much, as the root of the mean square."""
    scaled, allowed = x_S / largest, allowed / largest
    low, high = min(allowed, 1.0), 2.0
    step = high
    for _ in range(_TRIES):
        step = math.sqrt(low * high)
        back = torch.nn.functional.softshrink(scaled / step, _DEAD).round_().mul_(step)
        lost = float(torch.linalg.vector_norm(back.sub_(scaled))) / math.sqrt(len(scaled))
        if abs(lost - allowed) < _CLOSE * allowed:
            break
        low, high = (step, high) if lost < allowed else (low, step)
    return min(max(step * largest, _finest(largest)), _MOST_STEP)


def _squeezed(x_ND: Tensor, *, limit: float, largest: float) -> bytes:
    """The finest of a few tries that takes at most `limit` bytes."""
    # Bytes fall with the step about as a straight line does, in logarithms of both.
    step = _spread(x_ND, largest=largest)
    best = _written(torch.zeros_like(x_ND), step=1.0)
    if len(best) >= limit:
        return best
    fine, coarse = _Try(_finest(largest), 3.0 * x_ND.numel()), _Try(2.0 * largest, len(best))
    for _ in range(_TRIES_BYTES):
        step = min(max(step, _finest(largest)), _MOST_STEP)
        data = _written(_quantised(x_ND, step=step), step=step)
        if len(data) > limit:
            fine = _Try(step, len(data))
        else:
            best, coarse = data, _Try(step, len(data))
            if len(data) >= (1 - 2 * _CLOSE) * limit or step <= _finest(largest):
                break
        share = math.log(fine.size / (limit * (1 - _CLOSE))) / math.log(fine.size / coarse.size)
        step = fine.step * (coarse.step / fine.step) ** min(max(share, 0.05), 0.95)
    return best


class _Try(NamedTuple):
    step: float
    size: float
