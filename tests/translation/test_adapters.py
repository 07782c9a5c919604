import torch
from torch import nn

from splitlearn.translation.adapters import DecoderAdapter, EncoderAdapter


def test_an_encoder_adapter_begins_as_the_identity_and_can_learn() -> None:
    adapter = EncoderAdapter(16, inner=8)
    h_BSD = torch.randn(2, 3, 16)
    assert torch.equal(adapter(h_BSD), h_BSD)
    adapter(h_BSD).sum().backward()
    assert adapter.down.weight.grad is not None
    assert adapter.down.weight.grad.abs().sum() > 0


def test_a_decoder_adapter_begins_with_the_scale_of_the_norm_before_it() -> None:
    adapter, norm = DecoderAdapter(16, heads=4, inner=8), nn.LayerNorm(16)
    nn.init.normal_(norm.weight, mean=1.0, std=0.1)
    nn.init.normal_(norm.bias, std=0.1)
    adapter.begin_as(norm)
    x_BTD = torch.randn(2, 5, 16)
    source_BSD, real_BS = torch.randn(2, 3, 16), torch.ones(2, 3, dtype=torch.bool)
    found_BTD = adapter(norm(x_BTD), source_BSD=source_BSD, real_BS=real_BS)
    assert torch.allclose(found_BTD, norm(norm(norm(x_BTD))), atol=1e-5)


def test_padding_of_the_source_is_not_seen() -> None:
    adapter = DecoderAdapter(16, heads=4, inner=8)
    nn.init.normal_(adapter.out.weight)
    h_BTD, source_BSD = torch.randn(1, 5, 16), torch.randn(1, 4, 16)
    real_BS = torch.tensor([[True, True, True, False]])
    found_BTD = adapter(h_BTD, source_BSD=source_BSD, real_BS=real_BS)
    source_BSD[0, 3] = 100.0
    assert torch.equal(adapter(h_BTD, source_BSD=source_BSD, real_BS=real_BS), found_BTD)
    source_BSD[0, 2] = 100.0
    assert not torch.equal(adapter(h_BTD, source_BSD=source_BSD, real_BS=real_BS), found_BTD)
