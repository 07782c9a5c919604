"""Decoding, against a decoder whose answers are known."""

import torch
from transformers import BertConfig

from splitlearn.translation import DecoderShape, Source, TargetDecoder
from splitlearn.translation.frozen import build_bert
from splitlearn.translation.predict import mask_predict
from splitlearn.translation.text import Special

SPECIAL = Special(2, 3, 0, 4)


class Recorder(TargetDecoder):
    """Notes how many words were masked each time."""

    def __init__(self, config: BertConfig, writable: torch.Tensor) -> None:
        shape = DecoderShape(inner=16, reach=4)
        super().__init__(build_bert(config, seed=1), words_V=writable, shape=shape, seed=2)
        self.masks: list[list[int]] = []

    def forward(
        self, ids_BT: torch.Tensor, *, lengths: tuple[int, ...], source: Source
    ) -> torch.Tensor:
        self.masks.append((ids_BT == SPECIAL.mask).sum(dim=1).tolist())
        return super().forward(ids_BT, lengths=lengths, source=source)


def prefers(decoder: TargetDecoder, longer: int) -> None:
    torch.nn.init.zeros_(decoder.length.weight)
    with torch.no_grad():
        decoder.length.bias.copy_(-(torch.arange(9) - (longer + decoder.reach)).abs().float())


def test_fewer_words_are_masked_each_time_until_none_is(
    config: BertConfig, writable: torch.Tensor
) -> None:
    decoder = Recorder(config, writable)
    prefers(decoder, 0)
    source = Source(torch.randn(2, 13, 32), (13, 5))
    found = mask_predict(decoder, source, special=SPECIAL, iterations=5, candidates=1)
    assert decoder.masks == [[10, 2], [8, 1], [6, 1], [4, 0], [2, 0]]
    assert [len(words) for words in found] == [10, 2]
    assert {word for words in found for word in words} <= set(writable.tolist())


def test_lengths_are_told_from_the_source(config: BertConfig, writable: torch.Tensor) -> None:
    decoder = Recorder(config, writable)
    source = Source(torch.randn(1, 9, 32), (9,))
    for longer in (-2, 0, 3):
        prefers(decoder, longer)
        found = mask_predict(decoder, source, special=SPECIAL, candidates=1)
        assert [len(words) for words in found] == [6 + longer]


def test_of_several_lengths_the_surest_is_taken(config: BertConfig, writable: torch.Tensor) -> None:
    decoder = Recorder(config, writable)
    prefers(decoder, 0)
    source = Source(torch.randn(3, 9, 32), (9, 7, 8))
    three = mask_predict(decoder, source, special=SPECIAL, candidates=3)
    for row, n in enumerate((6, 4, 5)):
        assert len(three[row]) in {n - 1, n, n + 1}


def test_a_source_without_words_is_answered_by_one(
    config: BertConfig, writable: torch.Tensor
) -> None:
    decoder = Recorder(config, writable)
    prefers(decoder, -4)
    found = mask_predict(decoder, Source(torch.randn(1, 3, 32), (3,)), special=SPECIAL)
    assert len(found[0]) == 1
