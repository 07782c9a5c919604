import copy
from pathlib import Path

import msgspec
import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import layers_of
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import freeze, freeze_trunk, set_training
from splitlearn.split.lora import (
    adapt,
    adapters_only,
    blocks_of,
    check_targets,
    fold,
    load_trained,
    save_adapters,
    targets_in,
    trained_state,
    trunk_blocks,
)
from splitlearn.split.stage import factor, split
from splitlearn.wire.messages import LoraSpec
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
SPEC = LoraSpec(
    rank=4, alpha=8.0, dropout=0.0, targets=("attention.self.query", "attention.self.value"), seed=1
)


def adapted(where: str = "trunk", *, train_bottom: bool = False) -> PreTrainedModel:
    model = tiny_model("bert")
    adapt(blocks_of(model, cut=CUT, where=where, train_bottom=train_bottom), SPEC)
    freeze(model, cut=CUT, mode="lora", train_bottom=train_bottom)
    return model


def trained_a_bit(model: nn.Module) -> None:
    """As after training: whatever trains has another value."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape) * 0.05)


def logits(model: nn.Module) -> torch.Tensor:
    made = tiny_batch(tiny_model("bert"))
    with torch.no_grad():
        return model.eval()(**made.inputs)["logits"]


def test_targets_are_linear_layers_of_the_attention_or_all() -> None:
    block = tiny_model("bert").bert.encoder.layer[0]
    attention = targets_in(block, which="attention")
    assert attention == (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    )
    assert targets_in(block, which="all") == (*attention, "intermediate.dense", "output.dense")
    with pytest.raises(ManifestError, match="no linear layers"):
        targets_in(nn.LayerNorm(4), which="all")


def test_fresh_adapters_change_no_number_and_take_nothing_from_the_generator() -> None:
    model, state = tiny_model("bert"), torch.get_rng_state()
    adapt(blocks_of(model, cut=CUT, where="all", train_bottom=True), SPEC)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(logits(model), logits(tiny_model("bert")))


def test_a_trunk_draws_what_the_whole_model_draws_and_another_seed_draws_otherwise() -> None:
    _, trunk = split(factor(tiny_model("bert"), cut=CUT, bases={}), cut=CUT)
    adapt(trunk_blocks(trunk), SPEC)
    freeze_trunk(trunk, mode="lora")
    found, whole = trained_state(trunk), trained_state(adapted())
    assert len(found) == 2 * 2 * 2
    for name, tensor in found.items():
        same = whole[f"bert.encoder.layer.{name.removeprefix('layers.')}"]
        assert torch.equal(tensor, same)
        assert (float(tensor.abs().max()) == 0) is (".lora_B." in name)
    drawn = [t for name, t in found.items() if ".lora_A." in name]
    assert max(float(t.abs().max()) for t in drawn) < 32**-0.5
    assert len({float(t.sum()) for t in drawn}) == len(drawn)
    # The same on every machine and in every version.
    first = found["layers.1.attention.self.query.lora_A.default.weight"]
    assert first[0, :3].tolist() == KNOWN
    other = tiny_model("bert")
    spec = msgspec.structs.replace(SPEC, seed=2)
    adapt(blocks_of(other, cut=CUT, where="trunk", train_bottom=False), spec)
    query = other.bert.encoder.layer[1].attention.self.query
    assert not torch.equal(query.lora_A.default.weight, first)


KNOWN = [-0.11890839785337448, 0.01988239586353302, 0.04424101859331131]


@pytest.mark.parametrize(
    ("where", "train_bottom", "layers"),
    [("trunk", False, {1, 2}), ("all", False, {1, 2, 3}), ("all", True, {0, 1, 2, 3})],
)
def test_adapters_stand_where_the_job_says_and_alone_train_there(
    where: str, train_bottom: bool, layers: set[int]
) -> None:
    model = adapted(where, train_bottom=train_bottom)
    blocks = model.bert.encoder.layer
    for i, block in enumerate(blocks):
        trained = trained_state(block)
        assert any(".lora_" in name for name in trained) is (i in layers)
        assert all(".lora_" in name for name in trained) or i not in layers
    assert trained_state(model.bert.embeddings) == {}
    assert len(trained_state(model.classifier)) == 2
    # The top trains whole where it has none, the bottom not at all.
    assert bool(trained_state(blocks[3]))
    assert bool(trained_state(blocks[0])) is train_bottom
    assert adapters_only(nn.Linear(2, 2)) is False


def test_blocks_that_a_cut_runs_through_get_none() -> None:
    cut = Cut(2, 4, Bottleneck("sft", 4), Bottleneck("sft", 4))
    model = factor(tiny_model("bert", layers=6), cut=cut, bases={})
    found = blocks_of(model, cut=cut, where="all", train_bottom=True)
    assert sorted(found) == [0, 2, 4, 5]
    local, trunk = split(model, cut=cut)
    assert sorted(trunk_blocks(trunk)) == [2]
    assert sorted(blocks_of(local, cut=cut, where="trunk", train_bottom=True)) == []
    assert sorted(blocks_of(local, cut=cut, where="all", train_bottom=True)) == [0, 4, 5]
    adapt({}, SPEC)


def test_a_peers_targets_have_to_be_there() -> None:
    _, trunk = split(factor(tiny_model("bert"), cut=CUT, bases={}), cut=CUT)
    check_targets(trunk, SPEC)
    for target in ("attention.self", "query", "output.LayerNorm"):
        with pytest.raises(WireError, match=f"adapter at {target} of layer 1; there is no such"):
            check_targets(trunk, msgspec.structs.replace(SPEC, targets=(target,)))


def test_gpt2s_layers_that_lie_across_are_linear_ones_too() -> None:
    model = tiny_model("gpt2")
    targets = targets_in(layers_of(model)[1], which="attention")
    assert targets == ("attn.c_attn", "attn.c_proj")
    _, trunk = split(factor(model, cut=CUT, bases={}), cut=CUT)
    check_targets(trunk, msgspec.structs.replace(SPEC, targets=targets))
    with pytest.raises(WireError, match=r"adapter at ln_1 of layer 1; there is no such"):
        check_targets(trunk, msgspec.structs.replace(SPEC, targets=("ln_1",)))


def test_adapters_drop_out_in_training_and_what_is_frozen_does_not() -> None:
    model = tiny_model("bert", dropout=0.1)
    spec = msgspec.structs.replace(SPEC, dropout=0.5)
    adapt(blocks_of(model, cut=CUT, where="trunk", train_bottom=False), spec)
    freeze(model, cut=CUT, mode="lora", train_bottom=False)
    set_training(model, training=True)
    blocks = model.bert.encoder.layer
    assert blocks[1].attention.self.query.lora_dropout["default"].training
    assert not blocks[1].output.dropout.training
    assert not blocks[0].training


def test_what_trained_goes_out_and_comes_back_and_nothing_else_does() -> None:
    one, other = adapted(), adapted()
    trained_a_bit(one)
    load_trained(other, trained_state(one))
    assert torch.equal(logits(one), logits(other))
    with pytest.raises(WireError, match="trained weights came back"):
        load_trained(other, {})


@pytest.mark.parametrize(("where", "train_bottom"), [("trunk", False), ("all", True)])
def test_peft_loads_what_is_exported_and_gives_the_same_logits(
    tmp_path: Path, where: str, train_bottom: bool
) -> None:
    model = adapted(where, train_bottom=train_bottom)
    tiny_model("bert").save_pretrained(tmp_path / "base")
    trained_a_bit(model)
    save_adapters(tmp_path / "adapters", model=model, spec=SPEC, base="owner/base")
    assert {p.name for p in (tmp_path / "adapters").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapters")
    assert loaded.peft_config["default"].base_model_name_or_path == "owner/base"
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)
    assert not torch.allclose(logits(loaded), logits(tiny_model("bert")), atol=1e-3)


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral", "bart"])
def test_pefts_folder_and_the_folded_model_are_the_trained_one_in_other_families(
    tmp_path: Path, model_type: str
) -> None:
    """GPT-2's weights lie across; heads are tied or not; a decoder trains whole above an encoder."""
    model, base = tiny_model(model_type), tiny_model(model_type)
    spec = msgspec.structs.replace(SPEC, targets=targets_in(layers_of(model)[1], which="all"))
    adapt(blocks_of(model, cut=CUT, where="trunk", train_bottom=False), spec)
    freeze(model, cut=CUT, mode="lora", train_bottom=False)
    trained_a_bit(model)
    save_adapters(tmp_path / "adapters", model=model, spec=spec, base=None)
    made = tiny_batch(base)

    def said(by: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return by.eval()(**made.inputs, **made.labels)["logits"]

    before, expected = said(base), said(model)
    fold(model)
    assert model.state_dict().keys() == base.state_dict().keys()
    torch.testing.assert_close(said(model), expected, rtol=0, atol=1e-5)
    alone = PeftModel.from_pretrained(base, tmp_path / "adapters")
    torch.testing.assert_close(said(alone), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(before, expected, atol=1e-3)


def test_folded_adapters_leave_an_ordinary_model() -> None:
    model = adapted("all")
    trained_a_bit(model)
    expected = logits(copy.deepcopy(model))
    fold(model)
    assert model.state_dict().keys() == tiny_model("bert").state_dict().keys()
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-6)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ManifestError, match="adapters cannot be written"):
        save_adapters(tmp_path / "file", model=adapted(), spec=SPEC, base=None)
