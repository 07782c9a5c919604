"""Packed examples to padded ones and back: a model's inputs depend on the examples alone."""

# B examples, T tokens of the padded width, N tokens of all examples

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Padded", "pad"]

# A padded width is a multiple of this, so that few widths occur.
_MULTIPLE = 8


@dataclass(frozen=True)
class Padded:
    """ids_BT: int64, the padding id beyond each length; real_BT: bool, where a token is."""

    ids_BT: Tensor
    real_BT: Tensor

    @property
    def attention(self) -> Tensor:
        """(B, T) as transformers take it."""
        return self.real_BT.long()


def pad(ids_N: NDArray[np.int32], *, lengths: Sequence[int], fill: int, device: str) -> Padded:
    """All examples at one width: the longest's, rounded up to a multiple of 8.

    >>> pad(np.array([7, 8, 9], dtype=np.int32), lengths=(2, 1), fill=0, device="cpu").ids_BT[:, :3]
    tensor([[7, 8, 0],
            [9, 0, 0]])
    """
    width = -(-max(lengths) // _MULTIPLE) * _MULTIPLE
    real_BT = np.arange(width)[None, :] < np.array(lengths)[:, None]
    ids_BT = np.full(real_BT.shape, fill, dtype=np.int64)
    ids_BT[real_BT] = ids_N
    return Padded(torch.from_numpy(ids_BT).to(device), torch.from_numpy(real_BT).to(device))
