"""A low-rank factorisation that starts from the one before: two matrix products a message, no SVD.

PowerSGD (arXiv 1905.13727): P = M Q, orthogonalised; Q' = M^T P; the message is P and Q', what it stands
for is P Q'^T, and Q' is where the next message starts. Rows of one layer share their main directions, so
one round is nearly as good as the SVD. The directions are those of the message itself, so the peer learns
the space that its rows lie in, which a basis of public text would not tell.

N rows, D width, R rank, K columns of the factors: the least of N, D and R
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, bounded, check
from splitlearn.codecs.cast import Float16
from splitlearn.codecs.lowrank import named
from splitlearn.wire.tensors import Part

__all__ = ["LowRank"]


class LowRank:
    """`lowrank-32`: factors of rank 32 at most, both in float16.

    Only `encode` remembers, and only a start: `decode` is a pure function of the parts. An object writes
    one kind of message; a new one starts from a fixed draw, with more rounds. Values over 2^110 are cut.
    """

    def __init__(self, name: str, *, rank: int) -> None:
        self.name = name
        self._rank = rank
        # The factor of the newest message of each width that had so many columns.
        self._last: dict[int, Tensor] = {}

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        bounded(*x_ND.shape)
        rows, width = x_ND.shape
        kept = self._kept(rows, width)
        p_NK, q_DK, largest = torch.zeros(rows, kept), torch.zeros(width, kept), 1.0
        if kept and bool(x_ND.any()):
            # Sums of larger numbers than _MOST may overflow, and a quotient by less than _LEAST too.
            m_ND = x_ND.clamp(-_MOST, _MOST)
            largest = max(float(m_ND.abs().amax()), _LEAST)
            p_NK, q_DK = self._factors(m_ND / largest, kept=kept)
        return (
            *named(Float16().encode(p_NK), "p"),
            *named(Float16().encode(q_DK.T * largest), "q"),
        )

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        kept = self._kept(rows, width)
        p_NK = Float16().decode(named(parts[:2], ""), rows=rows, width=kept)
        q_KD = Float16().decode(named(parts[2:], ""), rows=kept, width=width)
        return p_NK @ q_KD

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        kept = self._kept(rows, width)
        return (
            Slot("px", "F16", (rows, kept)),
            Slot("pshift", "I8", (1,)),
            Slot("qx", "F16", (kept, width)),
            Slot("qshift", "I8", (1,)),
        )

    def _kept(self, rows: int, width: int) -> int:
        return min(self._rank, rows, width)

    def _factors(self, m_ND: Tensor, *, kept: int) -> tuple[Tensor, Tensor]:
        """P with orthonormal columns, and Q'; the latter is remembered if all its columns say something.

        Those of a message of lower rank than ours do not: any start spans it, and the next message
        would have to find directions anew.
        """
        width = m_ND.shape[1]
        last_DR = self._last.get(width)
        q_DK = (_drawn(width, self._rank) if last_DR is None else last_DR)[:, :kept]
        # Householder's QR: its columns are orthonormal and finite whatever the rank of the product.
        p_NK = torch.linalg.qr(m_ND @ q_DK).Q
        for _ in range(_COLD_ROUNDS - 1 if last_DR is None else 0):
            p_NK = torch.linalg.qr(m_ND @ (m_ND.T @ p_NK)).Q
        q_DK = m_ND.T @ p_NK
        sizes_K = q_DK.norm(dim=0)
        if kept == self._rank and bool((sizes_K > _DEAD * sizes_K.amax()).all()):
            self._last[width] = q_DK
        return p_NK, q_DK


_MOST = 2.0**110
_LEAST = 2.0**-100
# What rounding leaves of a direction that a message has not.
_DEAD = 1e-5
# On activations of a real encoder the error is 10 to 25% above the SVD's after one round from a drawn start,
# 2 to 5% after two and 1 to 2% after three.
_COLD_ROUNDS = 3


def _drawn(width: int, rank: int) -> Tensor:
    """A start that is the same in every process."""
    return torch.randn(width, rank, generator=torch.Generator().manual_seed(0))
