import pytest
import torch
from transformers import PreTrainedModel

from splitlearn.errors import WireError
from splitlearn.split.cache import MAX_CACHE_BYTES, MemoryCache, TrunkCache, check_cache
from splitlearn.split.crossing import Beside
from splitlearn.split.cut import Cut
from splitlearn.split.stage import split, split_chain
from splitlearn.split.trunk import Trunk
from tests.crossed import both_model, crossed_model
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


@pytest.mark.parametrize("stack", ["decoder", "both"])
def test_a_decoders_trunk_reads_its_memory_once(stack: str) -> None:
    """Of four layers, or of four below them: the second and third of the decoder, counted on."""
    model = crossed_model("bart") if stack == "decoder" else both_model("bart", layers=4)
    cut = Cut(1, 3) if stack == "decoder" else Cut(1, 7)
    starts = () if stack == "decoder" else (5,)
    trunk = split_chain(model, cut=cut, starts=starts)[1][-1].eval()
    generator = torch.Generator().manual_seed(0)
    h_BUD, m_BSD = torch.randn(2, 9, 32, generator=generator), torch.randn(2, 5, 32)
    beside, cache = Beside(m_BSD, (5, 3)), trunk.empty_cache()
    gone = Beside(torch.zeros_like(m_BSD), (5, 3))
    with torch.no_grad():
        pieces = [
            trunk(h_BUD[:, begins:ends], lengths=(ends, ends), cache=cache, beside=what)
            for begins, ends, what in ((0, 1, beside), (1, 2, gone), (2, 9, gone))
        ]
        whole = trunk(h_BUD, lengths=(9, 9), beside=beside)
    assert isinstance(cache, MemoryCache)
    assert cache.get_seq_length() == 9
    assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=1e-5)
    kept = cache.cross_attention_cache.layers
    assert [layer.keys.shape for layer in kept if layer.get_seq_length()] == [(2, 4, 5, 8)] * 2


def test_more_than_we_keep_is_refused_before_anything_is_computed() -> None:
    config = tiny_model("llama").config
    each = 2 * 4 * 2 * 8  # of one token in one layer, in float32
    tokens = MAX_CACHE_BYTES // (2 * each * 4)
    check_cache(config, layers=2, texts=4, tokens=tokens)
    with pytest.raises(WireError, match="fewer or shorter texts fit"):
        check_cache(config, layers=2, texts=4, tokens=tokens + 1)
    # A memory counts as its keys and values do in each layer, and once itself.
    bart = crossed_model("bart").config
    fits = MAX_CACHE_BYTES // (4 * 4 * 32) - (2 * 2 * 100)
    memory = fits // 5
    check_cache(bart, layers=2, texts=4, tokens=100, memory=memory)
    with pytest.raises(WireError, match=f"4 texts of 100 tokens and a memory of {memory + 1},"):
        check_cache(bart, layers=2, texts=4, tokens=100, memory=memory + 1)
    gpt2 = tiny_model("gpt2").config
    with pytest.raises(WireError, match="fewer or shorter"):
        check_cache(gpt2, layers=4, texts=4096, tokens=131_072)
