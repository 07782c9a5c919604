"""Forward-match refinement: try candidates through the public bottom and keep what matches the rows.

A row depends on its own token most and on the others of the text a little. So the guess for a text
is run through the bottom; how the row of each guessed token differs from that token's mean row tells
what the context does at this place; taken off the row seen, better candidates stand out; those are
put into the text, a share of its positions at a time, and the one whose row lies closest stays. As
more of the text is right, so is its context, and rows match to the last bit that the codec keeps.
"""

# N rows, B batch, T tokens, R columns of a row, K candidates

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splitlearn.leakage.known import Guess, Known, Seen
from splitlearn.leakage.linear import Profile
from splitlearn.leakage.public import BATCH_TOKENS, positions_of, rows_of

__all__ = ["REFINED_TOKENS", "refine"]

# A sweep's candidates a position: from the row without its context, and from the attack before. Few
# at first, while the context is wrong in many places anyway.
SWEEPS = ((3, 0), (4, 2), (8, 2), (16, 4), (24, 8), (24, 8))
# One position in so many is changed at a time; the others hold the context still.
STRIDE = 2
# A row that lies closer than this, in variances within an entry and column, is taken as found.
FOUND = 1e-4
# Tokens through the bottom, for a target of a few thousand: minutes on one core.
REFINED_TOKENS = 400_000


@dataclass
class _State:
    """The guess so far, (N), how far its rows lie from those seen, (N), and what may come instead."""

    ids_N: Tensor
    distance_N: Tensor
    spent_tokens: int = 0


def refine(
    known: Known,
    seen: Seen,
    start: Guess,
    profile: Profile,
    *,
    seed: int,
    budget_tokens: int = REFINED_TOKENS,
) -> Guess:
    """The guess of `start`, improved; its candidates stay behind the one found for each row."""
    begun = time.perf_counter()
    positions_N = positions_of(seen.lengths)
    ids_N = start.ranked_NK[:, 0].clone()
    rows_NR = rows_of(known, _texts(ids_N, seen.lengths))
    state = _State(ids_N, _distance(profile, rows_NR, seen.rows_NR), len(ids_N))
    corrected_NK = start.ranked_NK
    for corrected, earlier in SWEEPS:
        context_NR = profile.centre(rows_NR, positions_N) - profile.means_VR[state.ids_N]
        corrected_NK = profile.rank_centred(profile.centre(seen.rows_NR, positions_N) - context_NR)
        candidates_NK = torch.cat(
            [corrected_NK[:, :corrected], start.ranked_NK[:, :earlier]], dim=1
        )
        for phase in range(STRIDE):
            open_N = (state.distance_N > FOUND) & (positions_N % STRIDE == phase)
            _try(known, seen, profile, state, candidates_NK, open_N, budget_tokens)
        rows_NR = rows_of(known, _texts(state.ids_N, seen.lengths))
        state.distance_N = _distance(profile, rows_NR, seen.rows_NR)
        state.spent_tokens += len(ids_N)
        if state.spent_tokens >= budget_tokens or not bool((state.distance_N > FOUND).any()):
            break
    ranked_NK = _put_first(state.ids_N, corrected_NK)
    budget = {
        "seconds": round(time.perf_counter() - begun, 3),
        "forward_tokens": float(state.spent_tokens),
        "found": float((state.distance_N <= FOUND).double().mean()),
    }
    return Guess("refine", 1, seed, ranked_NK, None, budget)


def _try(
    known: Known,
    seen: Seen,
    profile: Profile,
    state: _State,
    candidates_NK: Tensor,
    open_N: Tensor,
    budget_tokens: int,
) -> None:
    """Puts each open position's candidates into its text in turn; keeps what lies closer than before."""
    starts = [0, *torch.tensor(seen.lengths).cumsum(0).tolist()]
    for text, length in enumerate(seen.lengths):
        here = slice(starts[text], starts[text] + length)
        open_T = open_N[here]
        copies = candidates_NK.shape[1]
        if not bool(open_T.any()) or state.spent_tokens + copies * length > budget_tokens:
            continue
        tried_KT = state.ids_N[here].repeat(copies, 1)
        tried_KT[:, open_T] = candidates_NK[here][open_T].T
        rows_NR = _rows(known, tried_KT)
        wanted_NR = seen.rows_NR[here].repeat(copies, 1)
        distance_KT = _distance(profile, rows_NR, wanted_NR).view(copies, length)
        best_T, which_T = distance_KT.min(dim=0)
        better_T = open_T & (best_T < state.distance_N[here])
        chosen_T = tried_KT.gather(0, which_T[None])[0]
        state.ids_N[here] = torch.where(better_T, chosen_T, state.ids_N[here])
        state.distance_N[here] = torch.where(better_T, best_T, state.distance_N[here])
        state.spent_tokens += copies * length


def _rows(known: Known, ids_BT: Tensor) -> Tensor:
    """Rows of texts of one length, (B * T, R)."""
    pieces = torch.split(ids_BT, max(1, BATCH_TOKENS // ids_BT.shape[1]))
    with torch.no_grad():
        return torch.cat([known.forward(some, (some.shape[1],) * len(some)) for some in pieces])


def _distance(profile: Profile, rows_NR: Tensor, wanted_NR: Tensor) -> Tensor:
    return ((rows_NR - wanted_NR) @ profile.whiten_RR).square().mean(dim=1)


def _texts(ids_N: Tensor, lengths: Sequence[int]) -> list[list[int]]:
    return [piece.tolist() for piece in torch.split(ids_N, list(lengths))]


def _put_first(ids_N: Tensor, ranked_NK: Tensor) -> Tensor:
    """The ids, then the other candidates in their order."""
    same_NK = ranked_NK == ids_N[:, None]
    rest_NK = ranked_NK.gather(1, same_NK.int().sort(dim=1, stable=True).indices)
    return torch.cat([ids_N[:, None], rest_NK[:, : ranked_NK.shape[1] - 1]], dim=1)
