"""A small trained inverter: rows of a text in, embeddings of its tokens out.

A perceptron on each row with its position, and, for the second kind, one transformer layer over the
text, so that neighbours help. Scores are inner products with the public embeddings, so entries that
the attacker's text lacks can be recovered too. Trained on the attacker's text and on plantings,
against the entries of the batch and a sample of the vocabulary.
"""

# N rows, B batch, T tokens, R columns of a row, D width, V vocabulary, H inner width, S sampled entries

import math
import time
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from splitlearn.leakage.known import Guess, Known, Seen
from splitlearn.leakage.linear import Centre
from splitlearn.leakage.public import Corpus, Public, positions_of
from splitlearn.leakage.score import KEPT, first_right, ranked

__all__ = ["STEPS", "Kind", "inverter"]

Kind = Literal["mlp", "transformer"]

STEPS = 200
BATCH_TOKENS = 512
# Entries drawn from the vocabulary as wrong answers, besides those of the batch.
SAMPLED = 1024
# Of the perceptron and of the transformer layer, at most; a narrow model's inverter is narrower.
INNER, WIDTH, HEADS = 768, 256, 4
LEARNING_RATE = 2e-3
WARM_STEPS = 30
PRIOR_WEIGHTS = (0.0, 0.3, 0.6, 1.0)
MAX_POSITIONS = 512


class _Inverter(nn.Module):
    """(B, T, R) and a mask of real tokens to directions among the embeddings, (B, T, D)."""

    def __init__(self, *, columns: int, width: int, kind: Kind) -> None:
        super().__init__()
        inner, inside = min(INNER, 2 * width), min(WIDTH, width - width % HEADS)
        self.enter = nn.Sequential(nn.Linear(columns, inner), nn.GELU(), nn.Linear(inner, inside))
        self.place = nn.Embedding(MAX_POSITIONS, inside)
        self.mix = (
            nn.TransformerEncoderLayer(
                inside, HEADS, 2 * inside, dropout=0.0, batch_first=True, norm_first=True
            )
            if kind == "transformer"
            else None
        )
        self.leave = nn.Sequential(
            nn.LayerNorm(inside), nn.Linear(inside, inner), nn.GELU(), nn.Linear(inner, width)
        )
        self.straight = nn.Linear(columns, width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, x_BTR: Tensor, mask_BT: Tensor) -> Tensor:
        places_T = torch.arange(x_BTR.shape[1]).clamp(max=MAX_POSITIONS - 1)
        h_BTH = self.enter(x_BTR) + self.place(places_T)
        if self.mix is not None:
            h_BTH = self.mix(h_BTH, src_key_padding_mask=~mask_BT)
        y_BTD: Tensor = self.leave(h_BTH) + self.straight(x_BTR)
        return normalize(y_BTD, dim=2) * self.log_scale.exp()


def inverter(
    known: Known,
    seen: Seen,
    public: Public,
    *,
    seed: int,
    kind: Kind = "transformer",
    steps: int = STEPS,
) -> Guess:
    """Trains for so many steps and ranks by score, with the weight of the prior that does best."""
    start = time.perf_counter()
    centre = Centre.of(*public.both)
    scale_R = centre(public.train.rows_NR, public.train.places).std(dim=0).clamp(min=1e-6)
    frequent_V = (public.counts_V + 0.5) / (public.counts_V + 0.5).sum()
    unit_VD = normalize(known.embeddings_VD - frequent_V @ known.embeddings_VD, dim=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _Inverter(columns=len(scale_R), width=unit_VD.shape[1], kind=kind)
        examples = _train(model, centre, scale_R, public, unit_VD, steps=steps)
    own = public.held_out
    own_ND = _directions(model, _scaled(centre, scale_R, own.rows_NR, own.lengths), own.lengths)
    log_prior_V, keys_DV = frequent_V.log(), unit_VD.T.contiguous()

    def rank(y_ND: Tensor, weight: float, kept: int) -> Tensor:
        bias_V = weight * log_prior_V
        return ranked(
            lambda y: torch.addmm(bias_V, y, keys_DV),
            y_ND,
            vocabulary=known.vocabulary,
            kept=kept,
        )

    shares = [
        first_right(rank(own_ND, weight, 1), own.ids_N, special=known.special)
        for weight in PRIOR_WEIGHTS
    ]
    best = max(range(len(shares)), key=shares.__getitem__)
    x_NR = _scaled(centre, scale_R, seen.rows_NR, seen.lengths)
    found_NK = rank(_directions(model, x_NR, seen.lengths), PRIOR_WEIGHTS[best], KEPT)
    budget = {
        "seconds": round(time.perf_counter() - start, 3),
        "examples": float(examples),
        "steps": float(steps),
        "epochs": round(examples / max(1, len(public.train.ids_N) + len(public.planted.ids_N)), 2),
    }
    return Guess(f"inverter-{kind}", 1, seed, found_NK, shares[best], budget)


def _train(
    model: _Inverter,
    centre: Centre,
    scale_R: Tensor,
    public: Public,
    unit_VD: Tensor,
    *,
    steps: int,
) -> int:
    """Half of each batch from the text as it is, half from plantings. Returns the tokens trained on."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, (1,))))
    sources = [_Source(corpus, generator) for corpus in public.both if corpus.lengths]
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min((step + 1) / WARM_STEPS, 1.0) * (1 - step / (steps + 1)),
    )
    examples = 0
    for _ in range(steps):
        texts = [text for source in sources for text in source.take(BATCH_TOKENS // len(sources))]
        rows_NR = torch.cat([rows for rows, _ in texts])
        ids_N = torch.cat([ids for _, ids in texts])
        lengths = tuple(len(ids) for _, ids in texts)
        y_ND = _run(model, _scaled(centre, scale_R, rows_NR, lengths), lengths)
        sample_S = torch.randint(len(unit_VD), (SAMPLED,), generator=generator)
        entries_S, targets_N = torch.unique(torch.cat([ids_N, sample_S]), return_inverse=True)
        loss = cross_entropy(y_ND @ unit_VD[entries_S].T, targets_N[: len(ids_N)])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        examples += len(ids_N)
    return examples


class _Source:
    """A corpus text by text, in an order drawn anew each time round."""

    def __init__(self, corpus: Corpus, generator: torch.Generator) -> None:
        lengths = list(corpus.lengths)
        self._texts = list(
            zip(
                torch.split(corpus.rows_NR, lengths),
                torch.split(corpus.ids_N, lengths),
                strict=True,
            )
        )
        self._generator = generator
        self._order: list[int] = []

    def take(self, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Texts of at least so many tokens, one text at least."""
        taken: list[tuple[Tensor, Tensor]] = []
        while sum(len(ids) for _, ids in taken) < tokens:
            if not self._order:
                self._order = torch.randperm(len(self._texts), generator=self._generator).tolist()
            taken.append(self._texts[self._order.pop()])
        return taken


def _scaled(centre: Centre, scale_R: Tensor, rows_NR: Tensor, lengths: Sequence[int]) -> Tensor:
    return centre(rows_NR, positions_of(lengths)) / scale_R


def _run(model: _Inverter, x_NR: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Packed rows through the inverter and back, (N, D)."""
    mask_BT = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    x_BTR = x_NR.new_zeros((*mask_BT.shape, x_NR.shape[1]))
    x_BTR[mask_BT] = x_NR
    y_BTD: Tensor = model(x_BTR, mask_BT)
    return y_BTD[mask_BT]


def _directions(model: _Inverter, x_NR: Tensor, lengths: tuple[int, ...]) -> Tensor:
    pieces = torch.split(x_NR, list(lengths))
    with torch.no_grad():
        model.train(False)
        return torch.cat([_run(model, piece, (len(piece),)) for piece in pieces])
