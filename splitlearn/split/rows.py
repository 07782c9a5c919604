"""Rows on the wire: a padded batch without its padding, and back again.

Padding is on the right, so a batch's lengths say all there is to know about its mask, and only the
rows of real tokens have to travel. That is exact where nothing reads a padded position's output:
sequence and token classification. It is not exact for question answering, whose loss runs over all
positions, padded ones among them; there the rows travel whole.
"""

# B batch, T padded length, D width, N rows on the wire

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.errors import WireError

__all__ = ["MAX_PAIRS", "MAX_POSITIONS", "mask_of", "pack", "reads_padding", "unpack"]

# Positions of a padded batch, B * T: 64 times the 32 x 512 of the usual recipe. Few rows and one
# long example would otherwise be padded to memory that nobody sent.
MAX_POSITIONS = 2**20
# Pairs of positions, B * T * T, which is what a mask holds: 2,048 examples of 512 tokens fit.
MAX_PAIRS = 2**30


def mask_of(lengths: Sequence[int], *, width: int) -> Tensor:
    """True at the real tokens, (B, T) with T = width.

    >>> mask_of((1, 3), width=3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def reads_padding(model: PreTrainedModel) -> bool:
    """Whether the model's loss depends on outputs at padded positions, so that rows travel whole."""
    return type(model).__name__.endswith("ForQuestionAnswering")


def pack(h_BTD: Tensor, *, lengths: Sequence[int], packed: bool = True) -> Tensor:
    """The rows that travel, (N, D): real tokens only, or all where not packed. Contiguous."""
    if not packed:
        return h_BTD.reshape(-1, h_BTD.shape[2]).contiguous()
    return h_BTD[mask_of(lengths, width=h_BTD.shape[1])]


def unpack(x_ND: Tensor, *, lengths: Sequence[int], width: int, packed: bool = True) -> Tensor:
    """The padded batch that rows from a peer stand for, (B, T, D) with T = width, padding zero.

    Always fresh memory: a matrix product's last bits may depend on the alignment of what it reads,
    and a view into a received frame is aligned by chance. WireError if rows and lengths disagree,
    or if the batch would be padded beyond what any job needs.
    """
    positions = len(lengths) * width
    if positions > MAX_POSITIONS or positions * width > MAX_PAIRS:
        raise WireError(
            f"the peer sent a batch of {len(lengths)} examples padded to {width} tokens; at most "
            f"{MAX_POSITIONS} positions and {MAX_PAIRS} pairs of them are padded; use smaller batches"
        )
    rows = sum(lengths) if packed else positions
    if x_ND.dim() != 2 or x_ND.shape[0] != rows or max(lengths, default=0) > width:
        raise WireError(
            f"a batch of {len(lengths)} examples padded to {width} takes {rows} rows, "
            f"but the peer sent a tensor of shape {tuple(x_ND.shape)}"
        )
    if not packed:
        return x_ND.reshape(len(lengths), width, -1).clone(memory_format=torch.contiguous_format)
    h_BTD = x_ND.new_zeros((len(lengths), width, x_ND.shape[1]))
    h_BTD[mask_of(lengths, width=width)] = x_ND
    return h_BTD
