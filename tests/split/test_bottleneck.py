import copy
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import base_of, family_of, layers_of
from splitlearn.split.bottleneck import PcaBasis, fit_pca, pca_pair, sft_pair
from tests.tiny import real_model_folder, tiny_batch, tiny_model

TEXT = [
    "The committee will meet again on Thursday to settle the budget.",
    "Rain is expected in the north, with strong winds along the coast.",
    "The striker scored twice in the second half.",
    "Prices of raw materials rose for the third month in a row.",
    "She plays the cello in an orchestra that tours every summer.",
    "A new processor promises longer battery life for small devices.",
]


def hidden(model: PreTrainedModel, batch: Mapping[str, Tensor], *, layer: int) -> Tensor:
    """Oracle: the library's own hidden states at the real tokens."""
    with torch.no_grad():
        states = base_of(model)(**batch, output_hidden_states=True).hidden_states
    return states[layer][batch["attention_mask"].bool()]


@pytest.fixture(scope="module")
def minilm() -> PreTrainedModel:
    return AutoModelForSequenceClassification.from_pretrained(
        real_model_folder(), num_labels=3
    ).eval()


@pytest.fixture(scope="module")
def text() -> dict[str, Tensor]:
    return dict(
        AutoTokenizer.from_pretrained(real_model_folder())(TEXT, padding=True, return_tensors="pt")
    )


@pytest.mark.parametrize("layer", [1, 3])
@pytest.mark.parametrize("model_type", ["bert", "distilbert", "electra"])
def test_the_basis_is_that_of_the_singular_values_of_the_centred_states(
    model_type: str, layer: int
) -> None:
    model = tiny_model(model_type).eval()
    batches = [tiny_batch(model, lengths=(9, 7, 8), seed=seed).inputs for seed in range(4)]
    found = fit_pca(model, batches, layer=layer, rank=5)
    rows_ND = torch.cat([hidden(model, batch, layer=layer) for batch in batches]).double()
    mean_D = rows_ND.mean(0)
    _, values, vectors = torch.linalg.svd(rows_ND - mean_D, full_matrices=False)
    torch.testing.assert_close(found.mean.double(), mean_D, atol=1e-6, rtol=1e-6)
    overlap_RR = (found.components.double() @ vectors[:5].T).abs()
    torch.testing.assert_close(overlap_RR, torch.eye(5, dtype=torch.float64), atol=1e-4, rtol=0)
    assert found.kept == pytest.approx(float((values[:5] ** 2).sum() / (values**2).sum()))


def test_what_down_and_up_lose_is_the_dropped_variance(
    minilm: PreTrainedModel, text: dict[str, Tensor]
) -> None:
    rank = 8
    basis = fit_pca(minilm, [text], layer=5, rank=rank)
    down, up = pca_pair(basis, width=384, rank=rank)
    rows_ND = hidden(minilm, text, layer=5)
    with torch.no_grad():
        back_ND = up(down(rows_ND))
    centred = rows_ND - rows_ND.mean(0)
    lost = float(((rows_ND - back_ND) ** 2).sum() / (centred**2).sum())
    assert lost == pytest.approx(1 - basis.kept, rel=1e-3)
    assert 0.1 < lost < 0.9  # neither nothing nor everything: the figure above is a real one


def test_a_basis_of_full_rank_loses_nothing(
    minilm: PreTrainedModel, text: dict[str, Tensor]
) -> None:
    model = tiny_model("bert").eval()
    batch = tiny_batch(model).inputs
    down, up = pca_pair(
        fit_pca(model, [batch], layer=2, rank=19), width=32, rank=19
    )  # 19 tokens span no more
    rows_ND = hidden(model, batch, layer=2)
    with torch.no_grad():
        torch.testing.assert_close(up(down(rows_ND)), rows_ND, atol=1e-5, rtol=1e-5)


def test_padding_does_not_count_in_the_basis() -> None:
    model = tiny_model("bert")
    tight = tiny_batch(model, lengths=(6, 6), width=6).inputs
    loose = {
        "input_ids": nn.functional.pad(tight["input_ids"], (0, 3), value=1),
        "attention_mask": nn.functional.pad(tight["attention_mask"], (0, 3)),
    }
    a, b = (fit_pca(model, [batch], layer=2, rank=3) for batch in (tight, loose))
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.components, b.components, atol=1e-4, rtol=1e-4)


def test_fitting_twice_gives_the_same_bits_and_leaves_the_model_as_it_was() -> None:
    model = tiny_model("distilbert", dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    a, b = (fit_pca(model, [tiny_batch(model).inputs], layer=2, rank=4) for _ in range(2))
    assert torch.equal(a.components, b.components)
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert len(layers_of(model)) == 4
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_each_component_points_where_its_largest_entry_is_positive() -> None:
    model = tiny_model("bert")
    components = fit_pca(model, [tiny_batch(model).inputs], layer=1, rank=6).components
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    assert bool((largest > 0).all())


def test_too_little_text_for_the_rank_is_refused() -> None:
    model = tiny_model("bert")
    batch = tiny_batch(model, lengths=(3, 2), width=3).inputs
    with pytest.raises(ManifestError, match=r"5 tokens cannot fit a bottleneck of rank 6"):
        fit_pca(model, [batch], layer=1, rank=6)


def test_a_basis_for_another_width_or_rank_is_refused() -> None:
    basis = PcaBasis(mean=torch.zeros(32), components=torch.eye(32)[:4], kept=1.0)
    with pytest.raises(ManifestError, match=r"\(4, 32\) was given for a cut of rank 5"):
        pca_pair(basis, width=32, rank=5)


def sft_by_hand(model: PreTrainedModel, h_BTD: Tensor, *, rank: int) -> Tensor:
    """METHODS section 3 with the block's own matrices, written out."""
    block = layers_of(model)[1]
    if model.config.model_type == "distilbert":
        x = block.sa_layer_norm(block.attention(h_BTD)[0] + h_BTD)
        first, second, norm = block.ffn.lin1, block.ffn.lin2, block.output_layer_norm
    else:
        x = block.attention(h_BTD)[0]
        first, second = block.intermediate.dense, block.output.dense
        norm = block.output.LayerNorm
    u, s, v = torch.linalg.svd(first.weight.double(), full_matrices=False)
    low_rank = (u[:, :rank] * s[:rank]) @ v[:rank]
    y = nn.functional.gelu(x.double() @ low_rank.T + first.bias.double())
    return norm((y @ second.weight.double().T + second.bias.double()).float())


@pytest.mark.parametrize("rank", [1, 8, 32])
@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra", "distilbert"])
def test_the_sft_pair_computes_the_truncated_block_without_its_feed_forward_residual(
    model_type: str, rank: int
) -> None:
    model = tiny_model(model_type).eval()
    h_BTD = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = sft_by_hand(model, h_BTD, rank=rank)
        block = copy.deepcopy(layers_of(model)[1])
        sender, receiver = sft_pair(block, halves=family_of(model).halves, rank=rank)
        z_BTR = sender(h_BTD, None, None, encoder_attention_mask=None, cache=None)
        found = receiver(z_BTR, None)
    assert z_BTR.shape == (2, 5, rank)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_error_of_the_sft_matrix_is_its_dropped_singular_values(
    minilm: PreTrainedModel,
) -> None:
    block = copy.deepcopy(layers_of(minilm)[4])
    whole = block.intermediate.dense.weight.detach().double()
    sender, receiver = sft_pair(block, halves=family_of(minilm).halves, rank=64)
    product = (
        receiver.expand.weight.double()
        @ sender.scale.weight.double()
        @ sender.basis.weight.double()
    )
    dropped = torch.linalg.svdvals(whole)[64:]
    error = torch.linalg.matrix_norm(whole - product.detach())
    assert float(error) == pytest.approx(float(dropped.square().sum().sqrt()), rel=1e-5)


def test_a_padded_position_does_not_reach_a_real_one_through_the_sender() -> None:
    model = tiny_model("bert").eval()
    block = layers_of(model)[1]
    sender, _ = sft_pair(block, halves=family_of(model).halves, rank=4)
    h_BTD = torch.randn(1, 5, 32)
    mask = torch.tensor([True, True, True, False, False])[None, None, None, :].expand(1, 1, 5, 5)
    disturbed = h_BTD.clone()
    disturbed[:, 3:] += 5.0
    with torch.no_grad():
        assert torch.equal(sender(h_BTD, mask)[:, :3], sender(disturbed, mask)[:, :3])


def test_all_three_factors_train() -> None:
    model = tiny_model("bert")
    sender, receiver = sft_pair(layers_of(model)[1], halves=family_of(model).halves, rank=4)
    receiver(sender(torch.randn(1, 5, 32))).square().sum().backward()
    for weight in (sender.basis.weight, sender.scale.weight, receiver.expand.weight):
        assert weight.grad is not None
        assert bool(weight.grad.abs().sum() > 0)


def test_making_pairs_draws_no_random_number() -> None:
    model = tiny_model("bert")
    state = torch.get_rng_state()
    sft_pair(layers_of(model)[1], halves=family_of(model).halves, rank=4)
    pca_pair(fit_pca(model, [tiny_batch(model).inputs], layer=1, rank=4), width=32, rank=4)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_block_without_memory_gives_a_pair_without_memory() -> None:
    model = tiny_model("distilbert")
    block = layers_of(model)[0].to("meta")
    pair = sft_pair(block, halves=family_of(model).halves, rank=4)
    assert all(weight.is_meta for module in pair for weight in module.parameters())
