import pytest
import torch
from torch import nn

from splitlearn.split.anatomy import base_of, layers_of
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import freeze, freeze_trunk, set_training
from splitlearn.split.stage import factor, slots_of, split
from tests.crossed import both_model, crossed_model
from tests.tiny import DECODERS, ENCODERS, RELATIVE, WRITERS, tiny_model

CUT = Cut(2, 3, Bottleneck("sft", 4), Bottleneck("sft", 4))
MODES = [("features", False), ("full", False), ("full", True)]


def standing(module: nn.Module) -> set[bool]:
    return {p.requires_grad for p in module.parameters()}


@pytest.mark.parametrize(("mode", "train_bottom"), MODES)
@pytest.mark.parametrize("model_type", ENCODERS)
def test_each_part_of_a_whole_model_trains_as_its_mode_says(
    model_type: str, mode: str, train_bottom: bool
) -> None:
    model = factor(tiny_model(model_type), cut=CUT, bases={})
    freeze(model, cut=CUT, mode=mode, train_bottom=train_bottom)
    slots = slots_of(model, cut=CUT)
    bottom = nn.ModuleList([base_of(model).get_submodule("embeddings"), *slots.bottom])
    assert standing(bottom) == {mode == "full" and train_bottom}
    assert standing(nn.ModuleList(slots.trunk)) == {mode == "full"}
    assert standing(nn.ModuleList(slots.top)) == {True}
    parts = nn.ModuleList([bottom, *slots.trunk, *slots.top])
    inside = {id(p) for p in parts.parameters()}
    outside = {n: p for n, p in model.named_parameters() if id(p) not in inside}
    for name, weight in outside.items():
        in_bottom = "embeddings_project" in name
        assert weight.requires_grad == (not in_bottom or (mode == "full" and train_bottom)), name
    assert outside


@pytest.mark.parametrize(("mode", "train_bottom"), MODES)
def test_the_same_call_on_both_parts_of_a_split_model_gives_the_same_standing(
    mode: str, train_bottom: bool
) -> None:
    whole = factor(tiny_model("electra"), cut=CUT, bases={})
    freeze(whole, cut=CUT, mode=mode, train_bottom=train_bottom)
    expected = [p.requires_grad for p in whole.parameters()]
    local, trunk = split(factor(tiny_model("electra"), cut=CUT, bases={}), cut=CUT)
    freeze(local, cut=CUT, mode=mode, train_bottom=train_bottom)
    freeze_trunk(trunk, mode=mode)
    found = [p.requires_grad for p in [*local.parameters(), *trunk.parameters()]]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("mode", "train_bottom"), MODES)
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_tied_head_stands_as_its_embeddings_do(
    model_type: str, mode: str, train_bottom: bool
) -> None:
    cut = Cut(2, 3)
    model = tiny_model(model_type)
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    slots, trains = slots_of(model, cut=cut), mode == "full" and train_bottom
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert standing(nn.ModuleList([words, *slots.bottom])) == {trains}
    assert standing(nn.ModuleList(slots.top)) == {True}
    tied = head.weight is words.weight
    assert tied == (model_type != "mistral")
    assert standing(head) == {trains or not tied}


def test_a_frozen_decoders_embeddings_run_without_the_dropout_beside_them() -> None:
    model = tiny_model("gpt2", dropout=0.5)
    freeze(model, cut=Cut(1, 3), mode="full", train_bottom=False)
    set_training(model, training=True)
    assert not base_of(model).drop.training
    assert layers_of(model)[2].training
    freeze(model, cut=Cut(1, 3), mode="full", train_bottom=True)
    set_training(model, training=True)
    assert base_of(model).drop.training


@pytest.mark.parametrize(("mode", "train_bottom"), MODES)
@pytest.mark.parametrize("model_type", sorted({*WRITERS} - {*RELATIVE}))
def test_above_a_remote_encoder_a_decoder_trains_but_for_the_embeddings_that_they_share(
    model_type: str, mode: str, train_bottom: bool
) -> None:
    cut = Cut(2, 3)
    model = tiny_model(model_type, dropout=0.5)
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    base, slots, trains = base_of(model), slots_of(model, cut=cut), mode == "full" and train_bottom
    assert standing(base.shared) == standing(nn.ModuleList(slots.bottom)) == {trains}
    assert standing(nn.ModuleList([*slots.top, *base.decoder.layers])) == {True}
    assert standing(base.encoder.embed_positions) == {trains and model_type == "bart"}
    set_training(model, training=True)
    assert base.encoder.training is trains  # else the embeddings' output would be dropped out
    assert slots.top[0].training
    assert base.decoder.training


@pytest.mark.parametrize(("mode", "train_bottom"), MODES)
@pytest.mark.parametrize("model_type", RELATIVE)
def test_a_table_of_relative_positions_never_trains_in_an_encoder_that_is_cut(
    model_type: str, mode: str, train_bottom: bool
) -> None:
    cut = Cut(2, 3)
    model = tiny_model(model_type, dropout=0.5)
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    slots, trains = slots_of(model, cut=cut), mode == "full" and train_bottom
    (table,) = [n for n, _ in slots.bottom[0].named_parameters() if "relative" in n]
    assert {p.requires_grad for n, p in slots.bottom[0].named_parameters() if n != table} == {
        trains
    }
    assert not slots.bottom[0].get_parameter(table).requires_grad
    assert standing(model.shared) == standing(slots.bottom[1]) == {trains}
    assert standing(nn.ModuleList([*slots.top, *model.decoder.block])) == {True}
    set_training(model, training=True)
    assert model.encoder.dropout.training is trains
    assert model.decoder.dropout.training
    assert slots.top[0].training
    _, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
    freeze_trunk(trunk, mode=mode)
    assert standing(trunk.layers) == {mode == "full"}
    assert trunk.table is not None
    assert standing(trunk.table) == {False}


@pytest.mark.parametrize(("mode", "train_bottom"), [*MODES, ("lora", True)])
@pytest.mark.parametrize("model_type", RELATIVE)
def test_a_table_of_relative_positions_never_trains_in_a_decoder_that_is_cut(
    model_type: str, mode: str, train_bottom: bool
) -> None:
    """That of an encoder at home below it does, with the bottom."""
    model, cut = crossed_model(model_type, dropout=0.5), Cut(2, 3)
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    trains = mode != "features" and train_bottom
    above, below = (
        {n: p for n, p in stack.named_parameters() if "relative" in n}
        for stack in (model.decoder, model.encoder)
    )
    assert [p.requires_grad for p in (*above.values(), *below.values())] == [False, trains]
    assert standing(model.encoder.block) == standing(model.encoder.final_layer_norm) == {trains}
    assert standing(model.decoder.block[1]) == {trains}
    assert standing(model.decoder.block[2]) == {mode == "full"}
    assert standing(model.decoder.block[3]) == standing(model.decoder.final_layer_norm) == {True}
    set_training(model, training=True)
    words = trains and mode == "full"
    assert [model.encoder.dropout.training, model.decoder.dropout.training] == [words, words]
    _, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
    assert trunk.table is not None
    assert standing(trunk.table) == {False}


@pytest.mark.parametrize(("mode", "train_bottom"), [*MODES, ("lora", True)])
def test_a_norm_between_two_stacks_trains_only_where_the_layers_there_do(
    mode: str, train_bottom: bool
) -> None:
    """In features nothing comes back to it; in lora all that trains between two parties are adapters."""
    model, cut = both_model("t5"), Cut(1, 5)
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    norm, between = model.encoder.final_layer_norm, model.decoder.block[0].layer[1]
    assert standing(norm) == standing(between) == {mode == "full"}
    assert standing(model.decoder.final_layer_norm) == {True}
    tables = [p for n, p in model.named_parameters() if "relative" in n]
    assert [p.requires_grad for p in tables] == [False, False]


def test_freezing_again_in_another_mode_undoes_the_first() -> None:
    model = factor(tiny_model("bert"), cut=CUT, bases={})
    freeze(model, cut=CUT, mode="features", train_bottom=False)
    freeze(model, cut=CUT, mode="full", train_bottom=True)
    assert standing(model) == {True}


def test_what_is_frozen_runs_without_dropout_and_what_trains_with_it() -> None:
    model = factor(tiny_model("bert", dropout=0.5), cut=CUT, bases={})
    freeze(model, cut=CUT, mode="features", train_bottom=False)
    set_training(model, training=True)
    slots = slots_of(model, cut=CUT)
    frozen = nn.ModuleList(
        [base_of(model).get_submodule("embeddings"), *slots.bottom, *slots.trunk]
    )
    assert {m.training for m in list(frozen.modules())[1:]} == {False}
    assert {m.training for m in nn.ModuleList(slots.top).modules()} == {True}
    assert model.get_submodule("dropout").training
    set_training(model, training=False)
    assert {m.training for m in model.modules()} == {False}


def test_a_frozen_trunk_gives_the_same_output_twice() -> None:
    _, trunk = split(factor(tiny_model("bert", dropout=0.5), cut=CUT, bases={}), cut=CUT)
    z_BTR = torch.randn(2, 5, 4)

    def twice(mode: str) -> bool:
        freeze_trunk(trunk, mode=mode)
        set_training(trunk, training=True)
        return torch.equal(trunk(z_BTR, lengths=(5, 3)), trunk(z_BTR, lengths=(5, 3)))

    assert twice("features")
    assert not twice("full")
