import pytest
import torch
from transformers import BertConfig, BertModel

from splitlearn.errors import ManifestError
from splitlearn.pretrain.adopt import discriminator_from_bert


def encoder(**changes: object) -> BertModel:
    torch.manual_seed(0)
    small = {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
    }
    return BertModel(BertConfig(**{**small, **changes}), add_pooling_layer=True).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_adopted_model_computes_what_the_encoder_does(attention: str) -> None:
    bert = encoder(attn_implementation=attention)
    electra = discriminator_from_bert(bert, seed=1).eval()
    ids_BT = torch.randint(0, 97, (3, 11))
    mask_BT = torch.arange(11) < torch.tensor([[11], [7], [4]])
    theirs = bert(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
    ours = electra.electra(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
    assert torch.equal(theirs, ours)


def test_only_the_head_is_drawn_and_by_the_seed() -> None:
    one, same, other = (discriminator_from_bert(encoder(), seed=seed) for seed in (1, 1, 2))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name])
        drawn = name.startswith("discriminator_predictions") and name.endswith("weight")
        assert torch.equal(tensor, other.state_dict()[name]) is not drawn


def test_an_encoder_of_another_make_is_refused() -> None:
    bert = encoder()
    del bert.encoder.layer[2]
    with pytest.raises(ManifestError, match="none that an ELECTRA discriminator can begin from"):
        discriminator_from_bert(bert, seed=1)
