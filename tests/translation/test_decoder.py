import torch
from transformers import BertConfig

from splitlearn.translation import DecoderShape, Source, TargetDecoder
from splitlearn.translation.frozen import build_bert

SHAPE = DecoderShape(inner=16, reach=4)


def test_scores_are_over_the_words_that_may_be_written(
    config: BertConfig, writable: torch.Tensor
) -> None:
    half = TargetDecoder(build_bert(config, seed=1), words_V=writable, shape=SHAPE, seed=2)
    source = Source(torch.randn(2, 5, 32), (5, 3))
    h_BTD = half(torch.randint(5, 17, (2, 6)), lengths=(6, 4), source=source)
    assert half.scores(h_BTD[0]).shape == (6, 7)
    assert half.length_scores(source).shape == (2, 9)


def test_the_input_embeddings_are_the_outputs_too(
    config: BertConfig, writable: torch.Tensor
) -> None:
    half = TargetDecoder(build_bert(config, seed=1), words_V=writable, shape=SHAPE, seed=2)
    h_MD = torch.randn(3, 32)
    before_MV = half.scores(h_MD)
    with torch.no_grad():
        half.frozen.words.weight[int(writable[0])] = 0.0
    after_MV = half.scores(h_MD)
    assert torch.equal(after_MV[:, 0], torch.zeros(3))
    assert torch.equal(after_MV[:, 1:], before_MV[:, 1:])


def test_only_what_was_added_trains(config: BertConfig, writable: torch.Tensor) -> None:
    half = TargetDecoder(build_bert(config, seed=1), words_V=writable, shape=SHAPE, seed=2)
    found = {name.split(".")[0] for name, p in half.named_parameters() if p.requires_grad}
    assert found == {"adapters", "transform", "bias_V", "length"}
