"""An orthogonal basis that both parties have: fitted once to public text, agreed on by its digest.

In it an encoder's rows are a few large numbers and many small ones. Gradients gain next to nothing from it.

N rows, D width, K of the basis's vectors
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, bounded, check
from splitlearn.codecs.cast import Float16
from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

__all__ = ["Basis", "Pca"]


@dataclass(frozen=True)
class Basis:
    """mean_D, and orthonormal vectors_DD in rows, those that hold most first."""

    mean_D: Tensor = field(repr=False)
    vectors_DD: Tensor = field(repr=False)

    def into(self, x_ND: Tensor, *, kept: int | None = None) -> Tensor:
        """(N, K): how much of each of the first `kept` vectors is in the rows less the mean."""
        x_ND, vectors_KD, mean_K = self._ready(x_ND, kept)
        return torch.addmm(-mean_K, x_ND, vectors_KD.T)

    def columns(self, x_ND: Tensor) -> Tensor:
        """(D, N): the same of all vectors, one column after the other."""
        x_ND, vectors_DD, mean_D = self._ready(x_ND, None)
        return torch.addmm(-mean_D[:, None], vectors_DD, x_ND.T)

    def out_of(self, z_NK: Tensor, *, width: int) -> Tensor:
        """(N, D): the rows again. `z_NK` may be columns seen as rows."""
        self._fits(width)
        return torch.addmm(self.mean_D, z_NK, self.vectors_DD[: z_NK.shape[1]])

    def _ready(self, x_ND: Tensor, kept: int | None) -> tuple[Tensor, Tensor, Tensor]:
        self._fits(x_ND.shape[1])
        vectors_KD = self.vectors_DD[:kept]
        least, most = torch.aminmax(x_ND) if x_ND.numel() else (0.0, 0.0)
        if not -_MOST <= float(least) <= float(most) <= _MOST:
            x_ND = x_ND.clamp(-_MOST, _MOST)
        return x_ND, vectors_KD, vectors_KD @ self.mean_D

    def _fits(self, width: int) -> None:
        if self.vectors_DD.shape != (width, width) or self.mean_D.shape != (width,):
            raise WireError(
                f"rows of width {width} were to be written in a basis of {tuple(self.vectors_DD.shape)}"
            )


class Pca:
    """`pca-0.3`: the first 0.3 of the basis's coordinates, at least one, in float16."""

    def __init__(self, name: str, *, share: float, basis: Basis) -> None:
        self.name = name
        self._share, self._basis = share, basis

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        bounded(*x_ND.shape)
        return Float16().encode(self._basis.into(x_ND, kept=self._kept(x_ND.shape[1])))

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        z_NK = Float16().decode(parts, rows=rows, width=self._kept(width))
        return self._basis.out_of(z_NK, width=width)

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        return Float16().layout(rows=rows, width=self._kept(width))

    def _kept(self, width: int) -> int:
        return max(1, round(self._share * width))


# Sums of larger numbers than this may overflow.
_MOST = 2.0**110
