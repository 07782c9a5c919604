"""Rows on the wire: a padded batch without its padding, and back again.

Padding is on the right, so a batch's lengths say all there is to know about its mask, and only the
rows of real tokens have to travel. That is exact where nothing reads a padded position's output:
sequence and token classification, and next tokens. It is not exact for question answering, whose loss
runs over all positions, padded ones among them; there the rows travel whole.

Where texts are joined, several lie in one row: each goes into the row of the one before it if it fits
there, else it begins the next. So lengths and width still say all, and the same rows travel in the
same order.
"""

# B rows of a padded batch (where texts are joined, fewer than texts), T padded length, D width,
# N rows on the wire

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.errors import WireError

__all__ = [
    "MAX_PAIRS",
    "MAX_POSITIONS",
    "apart",
    "mask_of",
    "pack",
    "positions_of",
    "reads_padding",
    "together",
    "unpack",
]

# Positions of a padded batch, B * T: 64 times the 32 x 512 of the usual recipe. Few rows and one
# long example would otherwise be padded to memory that nobody sent.
MAX_POSITIONS = 2**20
# Pairs of positions, B * T * T, which is what a mask holds: 2,048 examples of 512 tokens fit.
MAX_PAIRS = 2**30


def together(lengths: Sequence[int], *, width: int) -> list[list[int]]:
    """Lengths of the texts in each row, where texts are joined to rows of at most `width` tokens.

    >>> together((2, 3, 1, 4), width=5)
    [[2, 3], [1, 4]]
    """
    rows: list[list[int]] = []
    free = 0
    for length in lengths:
        if length > free:
            rows.append([])
            free = width
        rows[-1].append(length)
        free -= length
    return rows


def positions_of(lengths: Sequence[int], *, width: int) -> Tensor:
    """Place of each token in its text, (B, T) with T = width, where texts are joined.

    Padding counts as one more text, so that nothing sees it and it sees nothing.

    >>> positions_of((2, 3, 1), width=5).tolist()
    [[0, 1, 0, 1, 2], [0, 0, 1, 2, 3]]
    """
    rows = [[*row, width - sum(row)] for row in together(lengths, width=width)]
    return torch.stack([torch.cat([torch.arange(length) for length in row]) for row in rows])


def mask_of(lengths: Sequence[int], *, width: int, joined: bool = False) -> Tensor:
    """True at the real tokens, (B, T) with T = width.

    >>> mask_of((1, 3), width=3).tolist()
    [[True, False, False], [True, True, True]]
    """
    if joined:
        lengths = [sum(row) for row in together(lengths, width=width)]
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def reads_padding(model: PreTrainedModel) -> bool:
    """Whether the model's loss depends on outputs at padded positions, so that rows travel whole."""
    return type(model).__name__.endswith("ForQuestionAnswering")


def apart(x_BT: Tensor, *, lengths: Sequence[int], filler: int) -> Tensor:
    """A batch of joined texts as one of a text a row, of the same width: what the gate compares with."""
    width = x_BT.shape[1]
    apart_BT = torch.full((len(lengths), width), filler, dtype=x_BT.dtype)
    apart_BT[mask_of(lengths, width=width)] = x_BT[mask_of(lengths, width=width, joined=True)]
    return apart_BT


def pack(
    h_BTD: Tensor, *, lengths: Sequence[int], packed: bool = True, joined: bool = False
) -> Tensor:
    """The rows that travel, (N, D): real tokens only, or all where not packed. Contiguous, on the CPU."""
    if not packed:
        return h_BTD.reshape(-1, h_BTD.shape[2]).contiguous().cpu()
    mask_BT = mask_of(lengths, width=h_BTD.shape[1], joined=joined)
    return h_BTD[mask_BT.to(h_BTD.device)].cpu()


def unpack(
    x_ND: Tensor,
    *,
    lengths: Sequence[int],
    width: int,
    packed: bool = True,
    joined: bool = False,
) -> Tensor:
    """The padded batch that rows from a peer stand for, (B, T, D) with T = width, padding zero.

    Always fresh memory: a matrix product's last bits may depend on the alignment of what it reads,
    and a view into a received frame is aligned by chance. WireError if rows and lengths disagree,
    or if the batch would be padded beyond what any job needs.
    """
    if joined and not packed:
        raise WireError("the peer sent the padding of joined texts; only their tokens travel")
    size = len(together(lengths, width=width)) if joined else len(lengths)
    positions = size * width
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
    h_BTD = x_ND.new_zeros((size, width, x_ND.shape[1]))
    h_BTD[mask_of(lengths, width=width, joined=joined)] = x_ND
    return h_BTD
