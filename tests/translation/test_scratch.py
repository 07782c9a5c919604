import torch
from transformers import BertConfig

from splitlearn.translation import DecoderShape, EncoderShape
from splitlearn.translation.scratch import from_scratch


def test_every_weight_trains_and_follows_from_the_seed(
    config: BertConfig, writable: torch.Tensor
) -> None:
    shapes = {"encoder": EncoderShape(inner=16), "decoder": DecoderShape(inner=16)}
    one = from_scratch(config, words_V=writable, seed=3, **shapes)  # type: ignore[arg-type]
    two = from_scratch(config, words_V=writable, seed=3, **shapes)  # type: ignore[arg-type]
    for half, again in zip(one, two, strict=True):
        assert all(p.requires_grad for p in half.parameters())
        state = again.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in half.state_dict().items())
