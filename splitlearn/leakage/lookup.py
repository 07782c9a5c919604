"""White-box attacks that learn nothing: look the row up among those of every vocabulary entry.

`table` where no layer mixes tokens below the cut, so that a row depends on its token and position
alone. `enumerate_vocabulary` where a row depends on no later token: text by text, position by
position, every entry is tried behind the prefix found so far. Both work at any rank and for any
codec that keeps enough of the row to tell entries apart.
"""

# N rows, B batch, T tokens, R columns of a row, V vocabulary, K candidates

import time

import torch
from torch import Tensor

from splitlearn.leakage.known import Guess, Known, Seen
from splitlearn.leakage.public import BATCH_TOKENS, positions_of
from splitlearn.leakage.score import KEPT, ranked

__all__ = ["ENUMERATED_TOKENS", "enumerate_vocabulary", "table"]

# Tokens through the bottom in one enumeration: a few hundred tokens of text of a small vocabulary.
ENUMERATED_TOKENS = 20_000_000


def table(known: Known, seen: Seen, *, seed: int) -> Guess:
    """Nearest row of the vocabulary at the same position, for cut 0."""
    assert known.table is not None, "there is a table only where no layer mixes tokens"
    start = time.perf_counter()
    positions_N = positions_of(seen.lengths)
    kept = min(KEPT, known.vocabulary)
    found_NK = torch.zeros((len(positions_N), kept), dtype=torch.int64)
    for position in torch.unique(positions_N):
        with torch.no_grad():
            keys_VR = known.table(position)
        here_N = positions_N == position
        found_NK[here_N] = _closest(seen.rows_NR[here_N], keys_VR)
    budget = {"seconds": round(time.perf_counter() - start, 3)}
    return Guess("table", 1, seed, found_NK, None, budget)


def enumerate_vocabulary(
    known: Known, seen: Seen, *, seed: int, budget_tokens: int = ENUMERATED_TOKENS
) -> Guess:
    """Every entry behind the prefix found so far, for causal models.

    Texts are taken in order until the budget is spent; rows that were not reached have candidates
    0, 1, 2, ..., which is as good as nothing.
    """
    assert known.causal, "a row of a model that is not causal depends on later tokens"
    start = time.perf_counter()
    kept = min(KEPT, known.vocabulary)
    found_NK = torch.arange(kept).repeat(len(seen.rows_NR), 1)
    spent = row = 0
    for length in seen.lengths:
        prefix = torch.empty(0, dtype=torch.int64)
        for place in range(length):
            cost = known.vocabulary * (place + 1)
            if spent + cost > budget_tokens:
                break
            keys_VR = _behind(known, prefix)
            best_K = _closest(seen.rows_NR[row + place][None], keys_VR)[0]
            found_NK[row + place] = best_K
            prefix = torch.cat([prefix, best_K[:1]])
            spent += cost
        row += length
    budget = {"seconds": round(time.perf_counter() - start, 3), "forward_tokens": float(spent)}
    return Guess("enumerate", 1, seed, found_NK, None, budget)


def _behind(known: Known, prefix: Tensor) -> Tensor:
    """The row of every entry directly behind the prefix, (V, R)."""
    length = len(prefix) + 1
    rows = []
    for ids in torch.split(torch.arange(known.vocabulary), max(1, BATCH_TOKENS // length)):
        ids_BT = torch.cat([prefix.expand(len(ids), -1), ids[:, None]], dim=1)
        with torch.no_grad():
            rows_NR = known.forward(ids_BT, (length,) * len(ids))
        rows.append(rows_NR[length - 1 :: length])
    return torch.cat(rows)


def _closest(rows_NR: Tensor, keys_VR: Tensor) -> Tensor:
    """Candidates by distance, (N, K).

    The inner products that find the nearest few are too coarse to tell the nearest two apart where
    rows have few columns; differences are not.
    """
    offset_R = keys_VR.mean(0)
    x_NR, keys_RV = rows_NR - offset_R, (keys_VR - offset_R).T.contiguous()
    half_V = keys_RV.square().sum(0) / 2
    rough_NK = ranked(lambda x: torch.addmm(-half_V, x, keys_RV), x_NR, vocabulary=len(keys_VR))
    apart_NK = (keys_VR[rough_NK] - rows_NR[:, None]).square().sum(2)
    return rough_NK.gather(1, apart_NK.sort(dim=1, stable=True).indices)
