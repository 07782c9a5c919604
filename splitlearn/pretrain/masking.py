"""ELECTRA's corruption (arXiv 2003.10555): which places are masked, and what a generator puts there.

All draws come from seeds, so a batch can be made again; special tokens are neither masked nor drawn.
"""

# B examples, N tokens of all examples, M masked ones, V vocabulary

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitlearn.errors import ManifestError
from splitlearn.pretrain.vocabulary import Vocabulary
from splitlearn.wire.ids import IdBatch

__all__ = ["SHARE", "choose", "corrupt", "masked", "sample"]

SHARE = 0.15


def choose(
    examples: Sequence[NDArray[np.int32]],
    *,
    vocabulary: Vocabulary,
    seed: int,
    share: float = SHARE,
) -> NDArray[np.bool_]:
    """Which of all N tokens are masked: of each example `share` of its ordinary ones, at least one.

    ManifestError where no example has an ordinary token.
    """
    if not 0 < share < 1:
        raise ManifestError(f"a share of {share} masked; expected more than 0 and less than 1")
    rng = np.random.default_rng(seed)
    special = np.fromiter(vocabulary.special, dtype=np.int32)
    chosen = []
    for ids in examples:
        ordinary = np.flatnonzero(~np.isin(ids, special))
        count = min(len(ordinary), max(1, round(share * len(ordinary))))
        marks = np.zeros(len(ids), dtype=np.bool_)
        marks[rng.choice(ordinary, size=count, replace=False)] = True
        chosen.append(marks)
    whole = np.concatenate(chosen)
    if not whole.any():
        raise ManifestError("a batch has nothing to mask: its text is all outside the vocabulary")
    return whole


def masked(
    ids_N: NDArray[np.int32], chosen_N: NDArray[np.bool_], *, vocabulary: Vocabulary
) -> NDArray[np.int32]:
    """The ids with [MASK] at the chosen places."""
    return np.where(chosen_N, np.int32(vocabulary.mask), ids_N)


def sample(
    logits_MV: Tensor,
    *,
    vocabulary: Vocabulary,
    seed: int,
    first: int = 0,
    temperature: float = 1.0,
) -> NDArray[np.int32]:
    """M ids drawn from softmax(logits / temperature); no gradient passes.

    One uniform number a place, by inversion of the cumulative sum in double precision. Logits beyond
    the vocabulary and those of special tokens don't take part. first: the number of the first place,
    where several processes draw for one batch.
    """
    if not temperature > 0:
        raise ManifestError(f"a temperature of {temperature}; expected one above 0")
    with torch.no_grad():
        scaled_MV = logits_MV[:, : vocabulary.size].double() / temperature
        scaled_MV[:, sorted(vocabulary.special)] = -torch.inf
        sums_MV = scaled_MV.softmax(-1).cumsum(-1)
        rng = np.random.default_rng(seed)
        points = rng.random(first + len(logits_MV))[first:]
        points_M1 = torch.from_numpy(points).to(sums_MV.device)[:, None] * sums_MV[:, -1:]
        # The first sum above the point; a point on the last sum, by rounding, takes the last ordinary id.
        found_M = torch.searchsorted(sums_MV, points_M1, right=True)[:, 0]
        last = int(torch.isfinite(scaled_MV[0]).nonzero()[-1]) if len(scaled_MV) else 0
        drawn: NDArray[np.int32] = found_M.clamp(max=last).cpu().numpy().astype(np.int32)
    return drawn


def corrupt(
    examples: Sequence[NDArray[np.int32]],
    *,
    chosen_N: NDArray[np.bool_],
    drawn_M: NDArray[np.int32],
) -> IdBatch:
    """The batch with what was drawn at the chosen places; replaced only where it is another id."""
    ids_N = np.concatenate(examples)
    corrupted_N = ids_N.copy()
    corrupted_N[chosen_N] = drawn_M
    return IdBatch(
        ids=corrupted_N, replaced=corrupted_N != ids_N, lengths=tuple(map(len, examples))
    )
