"""The attacker's own text, run through the part of the model that it owns: what the attacks learn from.

Three corpora. `train` and `held_out` are the attacker's text; `planted` is the same text with a share
of its tokens replaced, so that every vocabulary entry is seen in some context: whoever owns the
bottom makes as many pairs of token and row as it likes.
"""

# N rows, B batch, T tokens, R columns of a row, V vocabulary

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splitlearn.leakage.known import Known

__all__ = ["PLANTED_TOKENS", "Corpus", "Public", "pad", "positions_of", "rows_of", "study"]

# Tokens that go through the model at once, padding included; wider batches are no faster on a CPU.
BATCH_TOKENS = 4096
# Of the attacker's text, for choosing between variants of an attack; a choice needs no more.
HELD_OUT_SHARE, HELD_OUT_TOKENS = 0.1, 1000
# How often each vocabulary entry is planted, in what share of positions, and tokens at most.
PLANTINGS, PLANTED_SHARE, PLANTED_TOKENS = 2, 0.35, 200_000


@dataclass(frozen=True)
class Corpus:
    """Texts with the row that would be sent for each token: (N, R) and (N), text after text."""

    rows_NR: Tensor
    ids_N: Tensor
    lengths: tuple[int, ...]

    @property
    def places(self) -> Tensor:
        """Each token's place in its text, (N)."""
        return positions_of(self.lengths)


@dataclass(frozen=True)
class Public:
    """What the attacker learns from. counts_V counts its text, without what was planted."""

    train: Corpus
    planted: Corpus
    held_out: Corpus
    counts_V: Tensor

    @property
    def both(self) -> tuple[Corpus, Corpus]:
        return self.train, self.planted


def study(known: Known, *, seed: int, planted_tokens: int = PLANTED_TOKENS) -> Public:
    """Runs the attacker's text through the bottom, split by texts, and once more with plantings."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(known.text), generator=generator).tolist()
    texts = [known.text[index] for index in order if known.text[index]]
    assert len(texts) >= 2, "an attacker's text is two texts at least"
    wanted = min(HELD_OUT_SHARE * sum(map(len, texts)), HELD_OUT_TOKENS)
    count, tokens = 0, 0
    while tokens < wanted and count < len(texts) - 1:
        tokens += len(texts[count])
        count += 1
    held_out, train = texts[:count], texts[count:]
    planted = _planted(known, train, generator, most_tokens=planted_tokens)
    counts_V = torch.bincount(_flat(train), minlength=known.vocabulary)
    return Public(
        _corpus(known, train), _corpus(known, planted), _corpus(known, held_out), counts_V
    )


def rows_of(known: Known, texts: Sequence[Sequence[int]]) -> Tensor:
    """The rows (N, R) that would be sent for the texts, in their order; texts of like length together."""
    rows: list[Tensor] = [torch.empty(0)] * len(texts)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    while order:
        size = max(1, BATCH_TOKENS // len(texts[order[-1]]))
        chosen, order = order[-size:], order[:-size]
        ids_BT, lengths = pad([texts[index] for index in chosen])
        with torch.no_grad():
            rows_NR = known.forward(ids_BT, lengths)
        for index, some_NR in zip(chosen, torch.split(rows_NR, list(lengths)), strict=True):
            rows[index] = some_NR
    return torch.cat(rows)


def pad(texts: Sequence[Sequence[int]]) -> tuple[Tensor, tuple[int, ...]]:
    """Ids (B, T), zero where there is no token, and the lengths.

    >>> pad([(5, 6), (7,)])
    (tensor([[5, 6],
            [7, 0]]), (2, 1))
    """
    lengths = tuple(map(len, texts))
    ids_BT = torch.zeros((len(texts), max(lengths)), dtype=torch.int64)
    for row, text in zip(ids_BT, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    return ids_BT, lengths


def positions_of(lengths: Sequence[int]) -> Tensor:
    """Each token's place in its text, (N).

    >>> positions_of((3, 2)).tolist()
    [0, 1, 2, 0, 1]
    """
    return torch.cat([torch.arange(length) for length in lengths]) if lengths else _NONE


_NONE = torch.empty(0, dtype=torch.int64)


def _corpus(known: Known, texts: Sequence[Sequence[int]]) -> Corpus:
    if not texts:
        width = known.forward(torch.zeros((1, 1), dtype=torch.int64), (1,)).shape[1]
        return Corpus(torch.empty((0, width)), _NONE, ())
    return Corpus(rows_of(known, texts), _flat(texts), tuple(map(len, texts)))


def _flat(texts: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([token for text in texts for token in text], dtype=torch.int64)


def _planted(
    known: Known,
    texts: Sequence[Sequence[int]],
    generator: torch.Generator,
    *,
    most_tokens: int,
) -> list[tuple[int, ...]]:
    """The texts again, over and over, until each entry that carries text was planted often enough."""
    usable = torch.tensor([v for v in range(known.vocabulary) if v not in known.special])
    queue_N = torch.cat(
        [usable[torch.randperm(len(usable), generator=generator)] for _ in range(PLANTINGS)]
    )
    planted: list[tuple[int, ...]] = []
    done = tokens = 0
    while done < len(queue_N) and tokens < most_tokens:
        before = done
        for text in texts:
            ids_T = torch.tensor(text)
            free_T = torch.rand(len(text), generator=generator) < PLANTED_SHARE
            free_T &= torch.tensor([token not in known.special for token in text])
            free = free_T.nonzero()[: len(queue_N) - done, 0]
            ids_T[free] = queue_N[done : done + len(free)]
            done, tokens = done + len(free), tokens + len(text)
            planted.append(tuple(ids_T.tolist()))
            if done == len(queue_N) or tokens >= most_tokens:
                break
        if done == before:  # texts of special tokens only
            break
    return planted
