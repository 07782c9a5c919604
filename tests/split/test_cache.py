import pytest
import torch
from transformers import PreTrainedModel

from splitlearn.errors import WireError
from splitlearn.split.cache import MAX_CACHE_BYTES, TrunkCache, check_cache
from splitlearn.split.cut import Cut
from splitlearn.split.stage import split
from splitlearn.split.trunk import Trunk
from tests.tiny import DECODERS, tiny_model


def trunk_of(model: PreTrainedModel) -> Trunk:
    return split(model, cut=Cut(2, 4))[1].eval()


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_trunk_says_piece_by_piece_what_it_says_at_once(model_type: str) -> None:
    trunk = trunk_of(tiny_model(model_type))
    h_BTD = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    cache = trunk.empty_cache()
    with torch.no_grad():
        pieces = [
            trunk(h_BTD[:, first:last], lengths=(last, last), cache=cache)
            for first, last in ((0, 5), (5, 6), (6, 9))
        ]
        whole = trunk(h_BTD, lengths=(9, 9))
    assert cache.get_seq_length() == 9
    assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=1e-5)


def test_only_the_trunks_own_layers_are_kept() -> None:
    model = tiny_model("llama", layers=6)
    trunk = trunk_of(model)
    cache = trunk.empty_cache()
    assert isinstance(cache, TrunkCache)
    trunk(torch.randn(1, 3, 32), lengths=(3,), cache=cache)
    kept = [layer.keys.shape for layer in cache.layers if layer.get_seq_length()]
    assert kept == [(1, 2, 3, 8)] * 2  # two key-value heads of width 8


def test_more_than_we_keep_is_refused_before_anything_is_computed() -> None:
    config = tiny_model("llama").config
    each = 2 * 4 * 2 * 8  # of one token in one layer, in float32
    tokens = MAX_CACHE_BYTES // (2 * each * 4)
    check_cache(config, layers=2, texts=4, tokens=tokens)
    with pytest.raises(WireError, match="fewer or shorter texts fit"):
        check_cache(config, layers=2, texts=4, tokens=tokens + 1)
    gpt2 = tiny_model("gpt2").config
    with pytest.raises(WireError, match="fewer or shorter"):
        check_cache(gpt2, layers=4, texts=4096, tokens=131_072)
