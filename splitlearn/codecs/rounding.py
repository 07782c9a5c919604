"""Numbers over one step, rounded with a dead zone, and what that loses.

Block by block, so that a block stays in the processor's cache through all that is done to it: whole
passes over a message spend most of their time on memory.

L lines of I items each, as they lie in memory: a line may be a row or a column
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Rounded", "rounded", "whole"]


class Rounded(NamedTuple):
    """near_LI: int8, with -128 for all beyond 127 either way. line_L, item_I: means of the numbers' sizes.

    lost: root of the mean square of the difference, in steps.
    """

    near_LI: Tensor
    line_L: NDArray[np.float32]
    item_I: NDArray[np.float32]
    lost: float


def rounded(x_LI: Tensor, *, step: float, largest: float) -> Rounded:
    """x_LI: float32 and contiguous, none larger than `largest`."""
    lines, items = x_LI.shape
    held = max(1, _BLOCK // max(items, 1))
    near_LI = torch.empty((lines, items), dtype=torch.int8)
    line_L, item_I = torch.zeros(lines), torch.zeros(items)
    room_HI, other_HI = torch.empty(min(held, lines), items), torch.empty(min(held, lines), items)
    wide = largest > 126 * step
    lost = 0.0
    for start in range(0, lines, held):
        x_HI, near_HI = x_LI[start : start + held], near_LI[start : start + held]
        v_HI, q_HI = room_HI[: len(x_HI)], other_HI[: len(x_HI)]
        torch.mul(x_HI, 1.0 / step, out=v_HI)
        _round(v_HI, out=q_HI)
        v_HI.sub_(q_HI)
        lost += float(torch.dot(v_HI.view(-1), v_HI.view(-1)))
        if wide:
            # 128 in two bytes is -128 in the lower one.
            near_HI.copy_(torch.clamp(q_HI, -128, 128, out=v_HI).to(torch.int16))
        else:
            near_HI.copy_(q_HI)
        q_HI.abs_()
        item_I += q_HI.sum(dim=0)
        torch.sum(q_HI, dim=1, out=line_L[start : start + held])
    return Rounded(
        near_LI,
        line_L.div_(max(items, 1)).numpy(),
        item_I.div_(max(lines, 1)).numpy(),
        math.sqrt(lost / max(x_LI.numel(), 1)),
    )


def whole(x: Tensor, *, step: float) -> Tensor:
    """The rounded numbers themselves, as float32 of the same shape."""
    v = torch.mul(x, 1.0 / step)
    return _round(v, out=torch.empty_like(v))


# Numbers go to zero up to 0.6 steps, and all others round down by as much: with what entropy coding saves it
# is the best trade between 0 and 0.2 on activations and gradients of a real encoder.
_DEAD = 0.1
# Three blocks of this many float32 numbers fit the second-level cache of most processors, and what a call
# costs is little beside a block.
_BLOCK = 98_304


def _round(v: Tensor, *, out: Tensor) -> Tensor:
    torch.clamp(v, -_DEAD, _DEAD, out=out)
    return torch.sub(v, out, out=out).round_()
