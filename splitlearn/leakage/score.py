"""From rows and scores to ranked candidates, from candidates and truth to shares; and the baselines.

A vocabulary has tens of thousands of entries, so scores of all of them are made for some rows at a
time and only the best are kept.
"""

# N rows, V vocabulary, D width, K candidates

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from splitlearn.leakage.known import Guess, Known, Recovery, Truth

__all__ = ["KEPT", "baselines", "first_right", "ranked", "recovery"]

# Candidates kept a row: 20 are scored, the rest is for refinement.
KEPT = 64
# Scores in memory at once: 32 MiB of float32.
CHUNK_SCORES = 2**23


def ranked(
    scores: Callable[[Tensor], Tensor], x_ND: Tensor, *, vocabulary: int, kept: int = KEPT
) -> Tensor:
    """The best candidates of each row, best first, (N, K). `scores` takes some rows to (n, V)."""
    chunk = max(1, CHUNK_SCORES // vocabulary)
    kept = min(kept, vocabulary)
    best = [scores(x).topk(kept, dim=1).indices for x in torch.split(x_ND, chunk)]
    return torch.cat(best) if best else torch.empty((0, kept), dtype=torch.int64)


def first_right(ranked_NK: Tensor, ids_N: Tensor, *, special: Iterable[int]) -> float:
    """Share of rows whose first candidate is right; special tokens do not count."""
    scored_N = ~_among(ids_N, special)
    return float((ranked_NK[:, 0] == ids_N)[scored_N].double().mean()) if scored_N.any() else 0.0


def recovery(guess: Guess, truth: Truth, *, known: Known) -> Recovery:
    """Holds a finished guess against the truth."""
    ids_N = torch.tensor([token for text in truth.ids for token in text], dtype=torch.int64)
    assert len(ids_N) == len(guess.ranked_NK), "one row of candidates a token"
    scored_N = ~_among(ids_N, known.special)
    right_NK = guess.ranked_NK[:, :20] == ids_N[:, None]
    top1_N, top20_N = right_NK[:, 0], right_NK.any(dim=1)
    attackers = {token for text in known.text for token in text}
    unseen_N = scored_N & ~_among(ids_N, attackers)
    slots_N = torch.tensor([mark for text in truth.slots for mark in text], dtype=torch.bool)
    slots_N = scored_N & (slots_N if truth.slots else torch.zeros_like(scored_N))
    return Recovery(
        attack=guess.attack,
        version=guess.version,
        seed=guess.seed,
        budget=guess.budget,
        tokens=int(scored_N.sum()),
        top1=_share(top1_N, scored_N) or 0.0,
        top20=_share(top20_N, scored_N) or 0.0,
        unseen=int(unseen_N.sum()),
        unseen_top1=_share(top1_N, unseen_N),
        slots=int(slots_N.sum()),
        slots_top1=_share(top1_N, slots_N),
    )


def baselines(known: Known, *, rows: int, seed: int) -> tuple[Guess, Guess]:
    """What is right without looking at a row: the attacker's most frequent tokens, and chance."""
    usable_V = torch.ones(known.vocabulary, dtype=torch.bool)
    usable_V[list(known.special)] = False
    text = torch.tensor([token for text in known.text for token in text], dtype=torch.int64)
    counts_V = torch.bincount(text, minlength=known.vocabulary).masked_fill(~usable_V, -1)
    frequent_K = counts_V.argsort(descending=True, stable=True)[:20]
    generator = torch.Generator().manual_seed(seed)
    usable = usable_V.nonzero()[:, 0]
    random_NK = usable[torch.randint(len(usable), (rows, 20), generator=generator)]
    return (
        Guess("most-frequent", 1, seed, frequent_K.expand(rows, -1)),
        Guess("random", 1, seed, random_NK),
    )


def _among(ids_N: Tensor, some: Iterable[int]) -> Tensor:
    return torch.isin(ids_N, torch.tensor(sorted(some), dtype=torch.int64))


def _share(right_N: Tensor, of_N: Tensor) -> float | None:
    return float(right_N[of_N].double().mean()) if bool(of_N.any()) else None
