"""The trunk of a decoder: masks rebuilt as its base model makes them, and what stands before it at home."""

import copy
from inspect import signature
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import base_of, cut_stack, depth_of, layers_of
from splitlearn.split.blueprint import build_trunk, trunk_model
from splitlearn.split.crossing import Beside, Handover, apart_again, as_one, hand_over, take_back
from splitlearn.split.cut import Bottleneck, Cut, spec_of
from splitlearn.split.freeze import freeze, set_training
from splitlearn.split.lora import adapt, blocks_of, trunk_blocks
from splitlearn.split.merge import joined_trunk, load_merged, merged, save_merged
from splitlearn.split.stage import (
    factor,
    slots_of,
    split,
    split_chain,
)
from splitlearn.split.weights import load_layers_from_folder, trunk_state
from splitlearn.wire.messages import LoraSpec, TrunkModel
from tests.crossed import both_model, crossed_model
from tests.tiny import RELATIVE, tiny_batch, tiny_model

CUT = Cut(1, 3)
TYPES = ("bart", "marian", "t5", "mt5")


@pytest.mark.parametrize("lengths", [(9, 4, 6), (9, 9, 9)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", TYPES)
def test_the_trunks_masks_are_the_base_models_own(
    model_type: str, attention: str, lengths: tuple[int, ...]
) -> None:
    model = crossed_model(model_type, attention=attention).eval()
    batch = tiny_batch(model, lengths=lengths)
    seen: list[tuple[object, ...]] = []
    names = ("attention_mask", "encoder_attention_mask", "position_bias", "cache")

    def look(layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        bound = signature(layer.forward).bind(*args, **kwargs).arguments
        seen.append(tuple(bound.get(name) for name in names))

    hook = layers_of(model)[1].register_forward_pre_hook(look, with_kwargs=True)
    model(**batch.inputs, **batch.labels)
    hook.remove()
    _, trunk = split(model, cut=CUT)
    trunk.layers["1"].register_forward_pre_hook(look, with_kwargs=True)
    trunk(torch.randn(3, 6, 32), lengths=(4, 6, 6), beside=Beside(torch.randn(3, 9, 32), lengths))
    for one, other in zip(*seen, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
    masks = [isinstance(mask, Tensor) for mask in seen[0][:3]]
    assert masks == [attention == "eager", min(lengths) < 9, model_type in RELATIVE]


@pytest.mark.parametrize("model_type", TYPES)
def test_a_built_trunk_has_the_weights_of_the_one_it_describes_and_finds_them_in_a_folder(
    model_type: str, tmp_path: Path
) -> None:
    model = crossed_model(model_type)
    tiny = copy.deepcopy(model)
    del tiny.config.cut_stack
    tiny.save_pretrained(tmp_path)
    blueprint = trunk_model(model)
    assert blueprint.model_type == f"{model_type}-decoder"
    _, expected = split(model, cut=CUT)
    found = build_trunk(blueprint, cut=spec_of(CUT))
    state = trunk_state(expected, group="layers")
    assert {n: p.shape for n, p in found.named_parameters()} == {
        n: t.shape for n, t in state.items()
    }
    assert all(p.is_meta for p in found.parameters())
    stored = load_layers_from_folder(tmp_path, model=blueprint, cut=spec_of(CUT))
    assert all(torch.equal(stored[name], tensor) for name, tensor in state.items())


def test_a_blueprint_of_a_decoder_is_held_to_the_decoders_numbers() -> None:
    blueprint = trunk_model(crossed_model("bart"))
    assert (blueprint.fields["layers"], blueprint.fields["inner"]) == (4, 48)
    with pytest.raises(WireError, match=r"bart-decoder trunk that cannot be: .*layers"):
        build_trunk(TrunkModel("bart-decoder", blueprint.fields | {"layers": 0}), cut=spec_of(CUT))
    with pytest.raises(WireError, match=r"layers \[1, 5\) of 4"):
        build_trunk(blueprint, cut=spec_of(Cut(1, 5)))
    with pytest.raises(WireError, match="rows of a memory, which no cut narrows"):
        build_trunk(blueprint, cut=spec_of(Cut(1, 3, Bottleneck("pca", 4))))


def test_models_without_such_a_decoder_are_refused_by_name() -> None:
    model = tiny_model("gpt2")
    cut_stack(model, "decoder")
    with pytest.raises(ManifestError, match=r"'gpt2' cannot be cut in its decoder; choose .* bart"):
        layers_of(model)
    dropping = crossed_model("bart", decoder_layerdrop=0.1)
    with pytest.raises(ManifestError, match=r"decoder_layerdrop = 0\.1"):
        split(dropping, cut=CUT)
    with pytest.raises(ManifestError, match="which no cut narrows; choose 'none'"):
        factor(crossed_model("bart"), cut=Cut(1, 3, upper=Bottleneck("pca", 4)), bases={})


def test_a_memory_is_for_a_decoders_trunk_and_for_no_other() -> None:
    h_BTD = torch.randn(1, 3, 32)
    _, crossed = split(crossed_model("bart"), cut=CUT)
    _, plain = split(tiny_model("bart"), cut=CUT)
    with pytest.raises(AssertionError, match="for a decoder's trunk, and for no other"):
        crossed(h_BTD, lengths=(3,))
    with pytest.raises(AssertionError, match="for a decoder's trunk, and for no other"):
        plain(h_BTD, lengths=(3,), beside=Beside(h_BTD, (3,)))


@pytest.mark.parametrize("model_type", TYPES)
def test_a_handover_changes_nothing_until_it_is_told_to_and_a_copy_forgets(model_type: str) -> None:
    model = crossed_model(model_type).eval()
    batch = tiny_batch(model)
    expected = model(**batch.inputs, **batch.labels).logits
    hand_over(model)
    assert torch.equal(model(**batch.inputs, **batch.labels).logits, expected)
    (door,) = (module for module in model.modules() if isinstance(module, Handover))
    door.exchange = torch.zeros_like
    assert not torch.equal(model(**batch.inputs, **batch.labels).logits, expected)
    assert torch.equal(copy.deepcopy(model)(**batch.inputs, **batch.labels).logits, expected)
    take_back(model)
    assert not any(isinstance(module, Handover) for module in model.modules())
    assert torch.equal(model(**batch.inputs, **batch.labels).logits, expected)


@pytest.mark.parametrize("model_type", TYPES)
def test_the_merged_model_is_the_plain_one_again(model_type: str, tmp_path: Path) -> None:
    model = crossed_model(model_type).eval()
    batch = tiny_batch(model)
    expected = model(**batch.inputs, **batch.labels).logits
    state = {name: t.clone() for name, t in model.state_dict().items()}
    local, trunk = split(model, cut=CUT)
    whole = merged(local, trunk=trunk, cut=CUT)
    assert list(whole.state_dict()) == list(state)
    save_merged(tmp_path / "out", model=whole, cut=CUT)
    assert "cut_stack" not in (tmp_path / "out" / "config.json").read_text()
    again = load_merged(tmp_path / "out")
    assert torch.equal(again(**batch.inputs, **batch.labels).logits, expected)


@pytest.mark.parametrize(
    ("mode", "train_bottom", "encoder", "words"),
    [
        ("full", True, True, True),
        ("full", False, False, False),
        ("lora", True, True, False),
        ("features", False, False, False),
    ],
)
def test_the_encoder_trains_and_drops_out_with_the_bottom(
    mode: str, train_bottom: bool, encoder: bool, words: bool
) -> None:
    model = crossed_model("bart", dropout=0.2)
    assert depth_of(model) == 4
    local, _ = split(model, cut=CUT)
    freeze(local, cut=CUT, mode=mode, train_bottom=train_bottom)  # type: ignore[arg-type]
    set_training(local, training=True)
    base = base_of(local)
    trains = {
        part: all(p.requires_grad for p in base.get_submodule(part).parameters())
        for part in ("encoder.layers", "decoder.layers.0", "decoder.layers.2", "shared")
    }
    assert list(trains.values()) == [encoder, encoder, True, words]
    assert base.get_submodule("encoder.layers.0").training is encoder
    assert base.get_submodule("decoder.layers.2").training
    # Both stacks drop out what their embeddings give by themselves.
    assert base.get_submodule("encoder").training is words
    assert base.get_submodule("decoder").training is words


def test_rows_of_both_are_told_apart_by_their_lengths_alone() -> None:
    m_MD, x_ND = torch.randn(5, 4), torch.randn(3, 4)
    both_ND = as_one(m_MD, x_ND)
    one, other = apart_again(both_ND, memory=(2, 3), lengths=(1, 2))
    assert torch.equal(one, m_MD)
    assert torch.equal(other, x_ND)
    with pytest.raises(WireError, match="5 rows of a memory and 4 of a decoder make 9"):
        apart_again(both_ND, memory=(2, 3), lengths=(2, 2))


# An encoder and its decoder, both cut: of three layers each, the decoder's are 3, 4 and 5.


@pytest.mark.parametrize(
    ("model_type", "kinds", "first"),
    [
        ("bart", ("BartEncoderLayer", "BartDecoderLayer"), "decoder.layers.0"),
        ("t5", ("T5Block", "T5Block"), "decoder.block.0"),
    ],
)
def test_layers_of_both_are_counted_on_and_put_back_where_they_were(
    model_type: str, kinds: tuple[str, str], first: str
) -> None:
    model = both_model(model_type)
    layers = list(layers_of(model))
    assert (depth_of(model), len(layers)) == (6, 6)
    assert layers[3] is base_of(model).get_submodule(first)
    local, parts = split_chain(model, cut=Cut(1, 5), starts=(4,))
    assert [list(part.layers) for part in parts] == [["1", "2"], ["4"]]
    assert [part.crossed for part in parts] == [False, True]
    below, above = kinds
    found = [type(layer).__name__ for layer in layers_of(local)]
    assert found == [below, "RemoteStage", above, "RemoteStage", above]
    slots = slots_of(local, cut=Cut(1, 5))
    assert (len(slots.bottom), list(slots.layers), len(slots.top)) == (1, [1, 3, 4], 1)
    whole = merged(local, trunk=joined_trunk(parts), cut=Cut(1, 5))
    expected = both_model(model_type).state_dict()
    assert list(whole.state_dict()) == list(expected)
    assert all(torch.equal(t, expected[n]) for n, t in whole.state_dict().items())


@pytest.mark.parametrize("cut", [Cut(1, 4), Cut(3, 5), Cut(2, 6)], ids=str)
def test_an_offer_of_layers_of_both_to_one_party_is_refused(cut: Cut) -> None:
    blueprint = trunk_model(both_model("bart"))
    with pytest.raises(WireError, match=r"of an encoder and of its decoder, which begins at 3"):
        build_trunk(blueprint, cut=spec_of(cut))


@pytest.mark.parametrize(
    ("name", "value"), [("decoder-layers", 0), ("decoder-heads", 5), ("decoder-inner", 65_537)]
)
def test_numbers_of_the_upper_stack_have_bounds_too(name: str, value: int) -> None:
    blueprint = trunk_model(both_model("bart"))
    assert name in blueprint.fields
    bad = TrunkModel("bart-both", blueprint.fields | {name: value})
    with pytest.raises(WireError, match=r"bart-both trunk that cannot be: .*(decoder-|heads)"):
        build_trunk(bad, cut=spec_of(Cut(4, 6)))


@pytest.mark.parametrize("model_type", ["marian", "t5"])
def test_a_part_of_both_is_built_and_found_in_a_folder(tmp_path: Path, model_type: str) -> None:
    model = both_model(model_type)
    blueprint = trunk_model(model)
    plain = copy.deepcopy(model)
    del plain.config.cut_stack
    plain.save_pretrained(tmp_path)
    _, parts = split_chain(model, cut=Cut(1, 6), starts=(4,))
    for part, cut in zip(parts, (Cut(1, 3), Cut(4, 6)), strict=True):
        state = trunk_state(part, group="layers")
        stored = load_layers_from_folder(tmp_path, model=blueprint, cut=spec_of(cut))
        assert stored.keys() == state.keys()
        assert all(torch.equal(stored[name], tensor) for name, tensor in state.items())
    tables = [part.table for part in parts if part.table is not None]
    if (
        model_type in RELATIVE
    ):  # each of its own stack, which is told apart by the first layer's number
        assert not torch.equal(*(table.relative_attention_bias.weight for table in tables))


def test_adapters_of_both_are_drawn_alike_wherever_their_layers_are() -> None:
    spec = LoraSpec(rank=2, alpha=4.0, dropout=0.0, targets=("self_attn.q_proj",), seed=5)
    model, cut = both_model("bart"), Cut(1, 5)
    whole = copy.deepcopy(model)
    adapt(blocks_of(whole, cut=cut, where="all", train_bottom=True), spec)
    expected = {n: p for n, p in whole.named_parameters() if ".lora_A." in n}
    local, parts = split_chain(model, cut=cut, starts=(4,))
    adapt(blocks_of(local, cut=cut, where="all", train_bottom=True), spec)
    for part in parts:
        adapt(trunk_blocks(part), spec)
    found = merged(local, trunk=joined_trunk(parts), cut=cut).state_dict()
    assert len(expected) == 6
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize(
    ("mode", "train_bottom", "trains"),
    [
        ("full", True, (True, True, True, True)),
        ("full", False, (False, True, True, False)),
        ("features", False, (False, False, True, False)),
    ],
)
def test_what_lies_between_two_stacks_trains_with_the_trunk(
    mode: str, train_bottom: bool, trains: tuple[bool, ...]
) -> None:
    local, _ = split_chain(both_model("bart", dropout=0.1), cut=Cut(1, 5), starts=(4,))
    freeze(local, cut=Cut(1, 5), mode=mode, train_bottom=train_bottom)  # type: ignore[arg-type]
    set_training(local, training=True)
    names = ("encoder.layers.0", "decoder.layers.0", "decoder.layers.2", "shared")
    base = base_of(local)
    found = [all(p.requires_grad for p in base.get_submodule(n).parameters()) for n in names]
    assert tuple(found) == trains
    assert base.get_submodule("encoder").training is trains[3]
    assert base.get_submodule("decoder").training is trains[3]
