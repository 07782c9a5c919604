"""Attacks without training by gradient: nearest neighbour, ridge inversion, and means of each entry.

All take the public bottom's rows of public text and nothing else. Where an attack has variants, it
keeps the one that recovers most of the text it held out.
"""

# N rows, V vocabulary, D width, R columns of a row, P positions

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import normalize

from splitlearn.leakage.known import Guess, Known, Seen
from splitlearn.leakage.public import Corpus, Public, positions_of
from splitlearn.leakage.score import KEPT, first_right, ranked

__all__ = ["Centre", "Profile", "fit_profile", "means", "nearest", "ridge"]

# Rows in a sum at a time, so that float64 copies stay small.
CHUNK_ROWS = 16_384
# A position seen less often than this has the mean of all rows.
ENOUGH_AT_A_POSITION = 32
LAMBDAS = (1e-4, 1e-2)
SHRINKAGES = (1e-3, 3e-2)
PRIOR_WEIGHTS = (0.0, 0.5, 1.0)
# Sightings that the linear estimate of an entry's mean counts for.
LINEAR_WORTH = 1.0


@dataclass(frozen=True)
class Centre:
    """The mean row at each position; the last one stands for all positions beyond."""

    mean_PR: Tensor

    @classmethod
    def of(cls, *corpora: Corpus) -> "Centre":
        rows_NR = torch.cat([corpus.rows_NR for corpus in corpora])
        positions_N = torch.cat([corpus.places for corpus in corpora])
        count = int(positions_N.max()) + 1
        sums_PR = torch.zeros(count + 1, rows_NR.shape[1]).index_add_(0, positions_N, rows_NR)
        times_P = torch.bincount(positions_N, minlength=count + 1)
        mean_PR = sums_PR / times_P.clamp(min=1)[:, None]
        mean_PR[times_P < ENOUGH_AT_A_POSITION] = rows_NR.mean(0)
        return cls(mean_PR)

    def __call__(self, rows_NR: Tensor, positions_N: Tensor) -> Tensor:
        return rows_NR - self.mean_PR[positions_N.clamp(max=len(self.mean_PR) - 1)]


@dataclass(frozen=True)
class Profile:
    """What rows of each entry look like: their mean off the centre, (V, R), and how they vary.

    `whiten_RR` makes rows of one entry vary alike in all directions; `log_prior_V` is how frequent
    the entry is in the attacker's text.
    """

    centre: Centre
    means_VR: Tensor
    whiten_RR: Tensor
    log_prior_V: Tensor
    prior_weight: float = 0.0

    def rank(self, rows_NR: Tensor, positions_N: Tensor, *, kept: int = KEPT) -> Tensor:
        """Candidates of each row by likelihood, (N, K)."""
        return self.rank_centred(self.centre(rows_NR, positions_N), kept=kept)

    def rank_centred(self, x_NR: Tensor, *, kept: int = KEPT) -> Tensor:
        """As `rank`, of rows that were already taken off their centre."""
        keys_RV = (self.means_VR @ self.whiten_RR).T.contiguous()
        bias_V = self.prior_weight * self.log_prior_V - keys_RV.square().sum(0) / 2
        return ranked(
            lambda x: torch.addmm(bias_V, x, keys_RV),
            x_NR @ self.whiten_RR,
            vocabulary=len(bias_V),
            kept=kept,
        )


def nearest(known: Known, seen: Seen, public: Public, *, seed: int) -> Guess:
    """Nearest public embedding by cosine, of the row brought back to full width. Trains nothing.

    Only where the means lie that are taken off beforehand is chosen on public text.
    """
    start = time.perf_counter()
    held_out = public.held_out
    frequent_V = public.counts_V / public.counts_V.sum()
    embedded_D = frequent_V @ known.embeddings_VD
    full_ND, own_ND = known.expand(seen.rows_NR), known.expand(held_out.rows_NR)
    public_D = known.expand(public.train.rows_NR).mean(0)
    nothing_D = torch.zeros_like(embedded_D)
    variants = (
        (nothing_D, nothing_D, nothing_D),
        (own_ND.mean(0), full_ND.mean(0), embedded_D),
        (public_D, public_D, embedded_D),
        (public_D, public_D, known.embeddings_VD.mean(0)),
        (public_D - embedded_D, public_D - embedded_D, nothing_D),
    )

    def rank(x_ND: Tensor, off_D: Tensor, keys_off_D: Tensor, kept: int) -> Tensor:
        keys_DV = normalize(known.embeddings_VD - keys_off_D, dim=1).T.contiguous()
        return ranked(lambda x: x @ keys_DV, x_ND - off_D, vocabulary=known.vocabulary, kept=kept)

    shares = [
        first_right(rank(own_ND, own, keys, 1), held_out.ids_N, special=known.special)
        for own, _, keys in variants
    ]
    best = max(range(len(variants)), key=shares.__getitem__)
    _, off_D, keys_D = variants[best]
    found_NK = rank(full_ND, off_D, keys_D, KEPT)
    return Guess("nearest", 1, seed, found_NK, shares[best], {"seconds": _since(start)})


def ridge(known: Known, seen: Seen, public: Public, *, seed: int) -> Guess:
    """Linear map from rows to embeddings by regularised least squares, then the nearest by cosine."""
    start = time.perf_counter()
    centre = Centre.of(*public.both)
    held_out = public.held_out
    own_NR = centre(held_out.rows_NR, held_out.places)
    offset_D = (public.counts_V / public.counts_V.sum()) @ known.embeddings_VD
    targets_VD = known.embeddings_VD - offset_D
    unit_DV = normalize(targets_VD, dim=1).T.contiguous()
    best, chosen_RD = -1.0, torch.zeros(seen.rows_NR.shape[1], known.embeddings_VD.shape[1])
    for corpora, unit in product(((public.train,), public.both), (False, True)):
        xx_RR, xy_RD = _sums(centre, corpora, unit_DV.T if unit else targets_VD)
        for strength in LAMBDAS:
            eye_RR = torch.eye(len(xx_RR), dtype=torch.float64) * xx_RR.diagonal().mean() * strength
            map_RD = torch.linalg.solve(xx_RR + eye_RR, xy_RD).float()
            share = first_right(
                _by_cosine(own_NR @ map_RD, unit_DV, kept=1), held_out.ids_N, special=known.special
            )
            if share > best:
                best, chosen_RD = share, map_RD
    x_NR = centre(seen.rows_NR, positions_of(seen.lengths))
    budget = {"seconds": _since(start), "examples": _tokens(public)}
    return Guess("ridge", 1, seed, _by_cosine(x_NR @ chosen_RD, unit_DV), best, budget)


def means(
    known: Known, seen: Seen, public: Public, *, seed: int, profile: Profile | None = None
) -> Guess:
    """The entry whose rows, seen in public text, are likeliest to look like this one."""
    start = time.perf_counter()
    profile = profile or fit_profile(known, public)
    held_out = public.held_out
    share = first_right(
        profile.rank(held_out.rows_NR, held_out.places, kept=1),
        held_out.ids_N,
        special=known.special,
    )
    found_NK = profile.rank(seen.rows_NR, positions_of(seen.lengths))
    budget = {"seconds": _since(start), "examples": _tokens(public)}
    return Guess("means", 1, seed, found_NK, share, budget)


def fit_profile(known: Known, public: Public) -> Profile:
    """Each entry's mean row, by what was seen of it and what its embedding lets expect.

    Shrinkage of the variation within an entry and weight of the prior are those that recover most
    of the text held out.
    """
    centre = Centre.of(*public.both)
    vocabulary, width = known.vocabulary, public.train.rows_NR.shape[1]
    sums_VR, times_V = torch.zeros(vocabulary, width), torch.zeros(vocabulary)
    square_RR = torch.zeros((width, width), dtype=torch.float64)
    for x_NR, ids_N in _chunks(centre, public.both):
        sums_VR.index_add_(0, ids_N, x_NR)
        times_V += torch.bincount(ids_N, minlength=vocabulary)
        square_RR += x_NR.T.double() @ x_NR.double()
    seen_VR = sums_VR / times_V.clamp(min=1)[:, None]
    linear_VR = _expected(known.embeddings_VD, seen_VR, times_V)
    means_VR = (sums_VR + LINEAR_WORTH * linear_VR) / (times_V + LINEAR_WORTH)[:, None]
    between_RR = (seen_VR * times_V[:, None]).T.double() @ seen_VR.double()
    degrees = max(1.0, float((times_V - 1).clamp(min=0).sum()))
    within_RR = (square_RR - between_RR) / degrees
    prior_V = (public.counts_V + 0.5) / (public.counts_V + 0.5).sum()
    held_out, best, chosen = public.held_out, -1.0, None
    for shrinkage in SHRINKAGES:
        whiten_RR = _whitening(within_RR, floor=shrinkage)
        for weight in PRIOR_WEIGHTS:
            profile = Profile(centre, means_VR, whiten_RR, prior_V.log(), weight)
            found_NK = profile.rank(held_out.rows_NR, held_out.places, kept=1)
            share = first_right(found_NK, held_out.ids_N, special=known.special)
            if share > best:
                best, chosen = share, profile
    assert chosen is not None, "one of the variants is the best"
    return chosen


def _chunks(centre: Centre, corpora: tuple[Corpus, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    for corpus in corpora:
        pieces = zip(
            torch.split(corpus.rows_NR, CHUNK_ROWS),
            torch.split(corpus.places, CHUNK_ROWS),
            torch.split(corpus.ids_N, CHUNK_ROWS),
            strict=True,
        )
        for rows_NR, positions_N, ids_N in pieces:
            if len(ids_N):
                yield centre(rows_NR, positions_N), ids_N


def _sums(centre: Centre, corpora: tuple[Corpus, ...], targets_VD: Tensor) -> tuple[Tensor, Tensor]:
    width = corpora[0].rows_NR.shape[1]
    xx_RR = torch.zeros((width, width), dtype=torch.float64)
    xy_RD = torch.zeros((width, targets_VD.shape[1]), dtype=torch.float64)
    for x_NR, ids_N in _chunks(centre, corpora):
        xx_RR += (x_NR.T @ x_NR).double()
        xy_RD += (x_NR.T @ targets_VD[ids_N]).double()
    return xx_RR, xy_RD


def _by_cosine(y_ND: Tensor, unit_DV: Tensor, *, kept: int = KEPT) -> Tensor:
    return ranked(lambda y: y @ unit_DV, y_ND, vocabulary=unit_DV.shape[1], kept=kept)


def _expected(embeddings_VD: Tensor, seen_VR: Tensor, times_V: Tensor) -> Tensor:
    """Mean rows as a linear function of embeddings, (V, R), fitted where an entry was seen."""
    there_V = times_V > 0
    e_VD = torch.cat([embeddings_VD, torch.ones(len(embeddings_VD), 1)], dim=1).double()
    weighted_VD = e_VD[there_V] * times_V[there_V, None].sqrt()
    ee_DD = weighted_VD.T @ e_VD[there_V]
    ee_DD += torch.eye(len(ee_DD), dtype=torch.float64) * ee_DD.diagonal().mean() * 1e-4
    map_DR = torch.linalg.solve(ee_DD, weighted_VD.T @ seen_VR[there_V].double())
    expected_VR: Tensor = e_VD @ map_DR
    return expected_VR.float()


def _whitening(within_RR: Tensor, *, floor: float) -> Tensor:
    """A square root of the inverse; no direction counts as narrower than a share of the mean one."""
    values_R, vectors_RR = torch.linalg.eigh(within_RR)
    least = float(values_R.mean().clamp(min=1e-12)) * floor
    whiten_RR: Tensor = vectors_RR * values_R.clamp(min=0).add(least).rsqrt()
    return whiten_RR.float()


def _tokens(public: Public) -> int:
    return len(public.train.ids_N) + len(public.planted.ids_N)


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 3)
