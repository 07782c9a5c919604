"""A truncated singular value decomposition of each message, as the source system sends it.

Kept to compare with: it costs more than it saves on most links, and a message's own basis is one more
thing that the peer learns.

N rows, D width, K singular values kept
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, bounded, check
from splitlearn.codecs.cast import Float16
from splitlearn.wire.tensors import Part

__all__ = ["Svd", "named"]


class Svd:
    """`svd-0.6`: the largest 0.6 of the singular values, at least one; both factors in float16."""

    def __init__(self, name: str, *, share: float) -> None:
        self.name = name
        self._share = share

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        bounded(*x_ND.shape)
        kept = self._kept(*x_ND.shape)
        largest = float(x_ND.abs().amax()) or 1.0
        u_NR, s_R, v_RD = torch.linalg.svd(x_ND / largest, full_matrices=False)
        # Half of a value's weight on each side, and the message's size on the second.
        root_K = s_R[:kept].sqrt()
        left, right = u_NR[:, :kept] * root_K, v_RD[:kept] * root_K.unsqueeze(1)
        return (
            *named(Float16().encode(left), "u"),
            *named(Float16().encode(right * largest), "v"),
        )

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        kept = self._kept(rows, width)
        left = Float16().decode(named(parts[:2], ""), rows=rows, width=kept)
        right = Float16().decode(named(parts[2:], ""), rows=kept, width=width)
        return left @ right

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        kept = self._kept(rows, width)
        return (
            Slot("ux", "F16", (rows, kept)),
            Slot("ushift", "I8", (1,)),
            Slot("vx", "F16", (kept, width)),
            Slot("vshift", "I8", (1,)),
        )

    def _kept(self, rows: int, width: int) -> int:
        return max(1, round(self._share * min(rows, width)))


def named(parts: Sequence[Part], prefix: str) -> tuple[Part, ...]:
    """Float16's two parts under names of their own, or under its names again."""
    return tuple(
        replace(part, name=prefix + name) for part, name in zip(parts, ("x", "shift"), strict=True)
    )
