import copy

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import base_of, layers_of
from splitlearn.split.bottleneck import Down, SftReceiver, SftSender, Up, fit_pca
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.stage import (
    RemoteStage,
    factor,
    remote_stage,
    slots_of,
    split,
    split_chain,
)
from tests.tiny import DECODERS, tiny_batch, tiny_model

PCA, SFT = Bottleneck("pca", 6), Bottleneck("sft", 4)


def factored(model_type: str, cut: Cut) -> PreTrainedModel:
    model = tiny_model(model_type).eval()
    text = [tiny_batch(model, seed=seed).inputs for seed in range(2)]
    bases = {
        where: fit_pca(model, text, layer=layer, rank=bottleneck.rank)
        for where, layer, bottleneck in (
            ("lower", cut.first, cut.lower),
            ("upper", cut.last, cut.upper),
        )
        if bottleneck.method == "pca"
    }
    return factor(model, cut=cut, bases=bases)


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_decoder_is_not_cut_through_a_block(model_type: str) -> None:
    with pytest.raises(ManifestError, match=f"{model_type} has no blocks for it; choose 'pca'"):
        factor(tiny_model(model_type), cut=Cut(2, 3, SFT), bases={})


def test_without_a_bottleneck_factoring_changes_no_number() -> None:
    model = tiny_model("bert").eval()
    batch = tiny_batch(model)
    expected = model(**batch.inputs).logits
    assert torch.equal(factor(model, cut=Cut(1, 3), bases={})(**batch.inputs).logits, expected)


@pytest.mark.parametrize(
    ("cut", "bottom", "trunk", "top"),
    [
        (Cut(1, 3), 1, 2, 1),
        (Cut(1, 3, PCA, PCA), 2, 4, 2),
        (Cut(1, 3, SFT, SFT), 1, 3, 2),
        (Cut(2, 3, SFT), 2, 2, 1),
        (Cut(1, 2, upper=SFT), 1, 1, 3),
        (Cut(1, 4, upper=PCA), 1, 4, 1),
    ],
)
def test_each_party_gets_its_half_of_a_bottleneck(
    cut: Cut, bottom: int, trunk: int, top: int
) -> None:
    slots = slots_of(factored("roberta", cut), cut=cut)
    assert (len(slots.bottom), len(slots.trunk), len(slots.top)) == (bottom, trunk, top)
    senders = {"none": type(None), "pca": Down, "sft": SftSender}
    receivers = {"none": type(None), "pca": Up, "sft": SftReceiver}
    assert isinstance(slots.receive, receivers[cut.lower.method])
    assert isinstance(slots.send, senders[cut.upper.method])
    if cut.lower.method != "none":
        assert isinstance(slots.bottom[-1], senders[cut.lower.method])
    if cut.upper.method != "none":
        assert isinstance(slots.top[0], receivers[cut.upper.method])
    assert list(slots.layers) == list(cut.whole)


@pytest.mark.parametrize("cut", [Cut(1, 3), Cut(2, 3, SFT, PCA), Cut(1, 4, PCA, SFT)], ids=str)
def test_the_local_model_with_its_trunk_behind_the_stage_is_the_whole_model(cut: Cut) -> None:
    model = factored("bert", cut)
    batch = tiny_batch(model)
    with torch.no_grad():
        expected = model(**batch.inputs).logits
        local, trunk = split(model, cut=cut)
        crossed: list[tuple[int, int]] = []

        def exchange(h_BTD: Tensor) -> Tensor:
            out = trunk(h_BTD, lengths=batch.lengths)
            crossed.append((h_BTD.shape[2], out.shape[2]))
            return out

        remote_stage(local).exchange = exchange
        assert torch.equal(local(**batch.inputs).logits, expected)
    assert crossed == [(cut.entrance(32), cut.exit(32))]


def test_local_and_trunk_share_the_weights_out_between_them() -> None:
    cut = Cut(1, 3, SFT, SFT)
    model = factored("distilbert", cut)
    every = {id(p) for p in model.parameters()}
    local, trunk = split(model, cut=cut)
    ours, theirs = {id(p) for p in local.parameters()}, {id(p) for p in trunk.parameters()}
    assert not ours & theirs
    assert ours | theirs == every
    assert {id(p) for p in base_of(local).get_input_embeddings().parameters()} <= ours


def test_a_copied_stage_forgets_its_exchange() -> None:
    local, _ = split(factored("bert", Cut(1, 3)), cut=Cut(1, 3))
    remote_stage(local).exchange = lambda h_BTD: h_BTD
    copied = remote_stage(copy.deepcopy(local))
    with pytest.raises(AssertionError, match="before the engine set its exchange"):
        copied(torch.zeros(1, 1, 32))
    assert remote_stage(local)(torch.zeros(1, 1, 32)).shape == (1, 1, 32)


def test_a_copied_stage_hands_on_what_it_was_handed() -> None:
    local, _ = split(factored("t5", Cut(1, 3)), cut=Cut(1, 3))
    copied = remote_stage(copy.deepcopy(local))
    copied.exchange = lambda h_BTD: h_BTD + 1
    bias = torch.ones(1, 4, 2, 2)
    hidden, handed, across = copied(torch.zeros(1, 2, 32), None, bias, None, None, None, cache=None)
    assert (float(hidden.min()), handed is bias, across) == (1.0, True, None)


def test_the_stage_is_called_as_a_layer_is() -> None:
    stage = RemoteStage()
    stage.exchange = lambda h_BTD: h_BTD + 1
    assert float(stage(torch.zeros(1, 1, 1), None, None, encoder_attention_mask=None)) == 1.0


def test_splitting_keeps_training_mode() -> None:
    model = factor(tiny_model("bert"), cut=Cut(1, 3), bases={})
    assert split(model.eval(), cut=Cut(1, 3))[1].training is False
    model = factor(tiny_model("bert"), cut=Cut(1, 3), bases={})
    assert split(model, cut=Cut(1, 3))[1].training is True


def test_a_cut_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"layers \[1, 5\) of 4"):
        factor(tiny_model("bert"), cut=Cut(1, 5), bases={})


@pytest.mark.parametrize(
    ("where", "cut"), [("lower", Cut(1, 3, PCA)), ("upper", Cut(1, 3, upper=PCA))]
)
def test_a_pca_cut_without_a_basis_is_refused(where: str, cut: Cut) -> None:
    with pytest.raises(ManifestError, match=f"the {where} cut has method 'pca' and no public text"):
        factor(tiny_model("bert"), cut=cut, bases={})


def test_splitting_with_another_cut_than_the_model_was_factored_with_is_our_mistake() -> None:
    model = factored("bert", Cut(1, 3, SFT))
    with pytest.raises(AssertionError, match="not factored with this cut"):
        split(model, cut=Cut(1, 3))


@pytest.mark.parametrize(
    "cut", [Cut(1, 4), Cut(1, 4, lower=PCA, upper=SFT)], ids=["plain", "narrow"]
)
def test_the_parts_of_a_chain_one_after_the_other_are_the_trunk(cut: Cut) -> None:
    batch = tiny_batch(tiny_model("bert"))
    _, whole = split(factored("bert", cut), cut=cut)
    local, parts = split_chain(factored("bert", cut), cut=cut, starts=(2, 3))
    assert sum(isinstance(layer, RemoteStage) for layer in layers_of(local)) == 3
    assert {n for part in parts for n in part.state_dict()} == set(whole.state_dict())
    h_BTD = torch.randn(3, 9, cut.entrance(32))
    o_BTD = h_BTD
    for part in parts:
        o_BTD = part(o_BTD, lengths=batch.lengths)
    assert torch.equal(o_BTD, whole(h_BTD, lengths=batch.lengths))


def test_a_direct_chain_has_one_remote_stage_for_all_its_parts() -> None:
    cut = Cut(1, 4)
    local, parts = split_chain(factored("bert", cut), cut=cut, starts=(2, 3), direct=True)
    assert sum(isinstance(layer, RemoteStage) for layer in layers_of(local)) == 1
    assert len(parts) == 3
    assert len(slots_of(local, cut=cut).trunk) == 1


def test_the_slots_of_a_local_part_of_a_chain_are_its_own_layers_and_remote_stages() -> None:
    cut = Cut(1, 3)
    local, _ = split_chain(factored("bert", cut), cut=cut, starts=(2,))
    slots = slots_of(local, cut=cut)
    assert (len(slots.bottom), len(slots.top)) == (1, 1)
    assert [type(module) for module in slots.trunk] == [RemoteStage, RemoteStage]
