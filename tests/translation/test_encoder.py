import torch
from transformers import BertConfig

from splitlearn.translation import EncoderShape, SourceEncoder
from splitlearn.translation.frozen import build_bert


def encoder(config: BertConfig, *, trains: bool = True) -> SourceEncoder:
    shape = EncoderShape(inner=16, trains=trains)
    return SourceEncoder(build_bert(config, seed=1), shape=shape, seed=2)


def test_one_row_more_than_ids_comes_out(config: BertConfig) -> None:
    h_BSD = encoder(config)(torch.randint(5, 17, (2, 7)), lengths=(7, 4))
    assert h_BSD.shape == (2, 8, 32)


def test_only_adapters_and_the_extra_token_train(config: BertConfig) -> None:
    found = {n.split(".")[0] for n, p in encoder(config).named_parameters() if p.requires_grad}
    assert found == {"adapters", "extra"}
    assert not any(p.requires_grad for p in encoder(config, trains=False).parameters())


def test_what_stands_after_the_last_token_changes_no_real_row(config: BertConfig) -> None:
    half = encoder(config)
    ids_BT = torch.randint(5, 17, (1, 7))
    one = half(ids_BT, lengths=(4,))[:, :5]
    ids_BT[:, 4:] = 9
    assert torch.allclose(half(ids_BT, lengths=(4,))[:, :5], one, atol=1e-6)


def test_the_global_random_state_is_left_alone(config: BertConfig) -> None:
    before = torch.random.get_rng_state()
    encoder(config)
    assert torch.equal(torch.random.get_rng_state(), before)
