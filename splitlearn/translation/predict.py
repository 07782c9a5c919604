"""Mask-Predict (arXiv 1904.09324): begin with all words masked, and rewrite the least sure ones each time."""

# B examples, C candidates of each, R = B x C rows, T tokens of the padded width, V words, L lengths

from dataclasses import replace

import torch
from torch import Tensor

from splitlearn.translation.decoder import Source, TargetDecoder
from splitlearn.translation.frozen import real_tokens
from splitlearn.translation.text import Special

__all__ = ["ITERATIONS", "mask_predict"]

ITERATIONS = 10


@torch.no_grad()
def mask_predict(
    decoder: TargetDecoder,
    source: Source,
    *,
    special: Special,
    iterations: int = ITERATIONS,
    candidates: int = 3,
) -> list[list[int]]:
    """The words of a target for each source, without first and last.

    Of each source's `candidates` most likely lengths the target is taken whose words are surest on
    average. Iteration t of n masks the share (n - t) / n of the words.
    """
    lengths_BC = _lengths(decoder, source, candidates=candidates)
    lengths_R = lengths_BC.flatten()
    lengths = tuple(int(n) + 2 for n in lengths_R)
    width = max(lengths)
    rows = replace(
        source,
        rows_BSD=source.rows_BSD.repeat_interleave(candidates, dim=0),
        lengths=tuple(n for n in source.lengths for _ in range(candidates)),
    )
    word_RT = real_tokens(lengths, width=width)
    ids_RT = torch.full((len(lengths), width), special.pad)
    ids_RT[word_RT] = special.mask
    ids_RT[:, 0] = special.first
    ids_RT[torch.arange(len(lengths)), lengths_R + 1] = special.last
    word_RT[:, 0] = False
    word_RT[torch.arange(len(lengths)), lengths_R + 1] = False
    sure_RT = torch.full(ids_RT.shape, -torch.inf)
    holes_RT = word_RT
    for iteration in range(iterations):
        h_RTD = decoder(ids_RT.masked_fill(holes_RT, special.mask), lengths=lengths, source=rows)
        best_M, at_M = decoder.scores(h_RTD[holes_RT]).log_softmax(dim=1).max(dim=1)
        ids_RT[holes_RT] = decoder.words_V[at_M]
        sure_RT[holes_RT] = best_M
        share = (iterations - 1 - iteration) / iterations
        holes_RT = _least_sure(sure_RT, word_RT, count_R=(lengths_R * share).long())
        if not holes_RT.any():
            break
    mean_R = sure_RT.masked_fill(~word_RT, 0.0).sum(dim=1) / lengths_R
    best_B = mean_R.view_as(lengths_BC).argmax(dim=1)
    chosen = (torch.arange(len(best_B)) * candidates + best_B).tolist()
    return [ids_RT[row][word_RT[row]].tolist() for row in chosen]


def _lengths(decoder: TargetDecoder, source: Source, *, candidates: int) -> Tensor:
    """The most likely numbers of words, (B, C): at least 1, and as many as positions allow."""
    top_BC = decoder.length_scores(source).topk(candidates, dim=1).indices - decoder.reach
    words_B = torch.tensor(source.lengths) - 3  # without the extra, the first and the last token
    return (words_B[:, None] + top_BC).clamp(1, decoder.frozen.positions - 2)


def _least_sure(sure_RT: Tensor, word_RT: Tensor, *, count_R: Tensor) -> Tensor:
    """True at the `count` least sure words of each row."""
    rank_RT = sure_RT.masked_fill(~word_RT, torch.inf).argsort(dim=1).argsort(dim=1)
    return (rank_RT < count_R[:, None]) & word_RT
