"""The conditional masked-language loss (arXiv 1904.09324): fill in what was masked, and tell the length."""

# B examples, T tokens of the target, M masked ones, V words

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from splitlearn.translation.decoder import Source, TargetDecoder
from splitlearn.translation.settings import Objective
from splitlearn.translation.text import Padded

__all__ = ["Masked", "loss_of", "mask_targets"]


@dataclass(frozen=True)
class Masked:
    """Targets with holes. chosen_BT: True at the holes."""

    ids_BT: Tensor
    chosen_BT: Tensor


def mask_targets(targets: Padded, *, mask: int, seed: int) -> Masked:
    """Of each target mask 1 to all of its words, every number as likely as any other.

    First and last token are never masked. What is chosen follows from `seed` alone.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    chosen_BT: NDArray[np.bool_] = np.zeros(tuple(targets.ids_BT.shape), dtype=np.bool_)
    for row, length in enumerate(targets.lengths):
        words = length - 2
        if words > 0:
            count = int(draw.integers(1, words + 1))
            chosen_BT[row, 1 + draw.choice(words, size=count, replace=False)] = True
    chosen = torch.from_numpy(chosen_BT)
    return Masked(targets.ids_BT.masked_fill(chosen, mask), chosen)


def loss_of(
    decoder: TargetDecoder,
    *,
    source: Source,
    targets: Padded,
    masked: Masked,
    objective: Objective,
) -> Tensor:
    """Mean over the masked words, smoothed, and the length's loss by its weight; in nats.

    Words that the decoder may not write are not asked for.
    """
    h_BTD = decoder(masked.ids_BT, lengths=targets.lengths, source=source)
    ids_M = targets.ids_BT[masked.chosen_BT]
    at_M = torch.searchsorted(decoder.words_V, ids_M).clamp(max=len(decoder.words_V) - 1)
    known_M = decoder.words_V[at_M] == ids_M
    at_M = at_M.masked_fill(~known_M, -100)
    words = functional.cross_entropy(
        decoder.scores(h_BTD[masked.chosen_BT]),
        at_M,
        label_smoothing=objective.smoothing,
        ignore_index=-100,
        reduction="sum",
    ) / max(1, int(known_M.sum()))
    longer_B = torch.tensor(targets.lengths) - torch.tensor(source.lengths) + 1
    lengths = functional.cross_entropy(
        decoder.length_scores(source), longer_B.clamp(-decoder.reach, decoder.reach) + decoder.reach
    )
    return words + objective.length * lengths
