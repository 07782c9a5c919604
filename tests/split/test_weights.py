import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import base_of
from splitlearn.split.blueprint import build_trunk, trunk_model
from splitlearn.split.cut import Bottleneck, Cut, spec_of
from splitlearn.split.families import FAMILIES
from splitlearn.split.stage import factor, split
from splitlearn.split.trunk import Trunk
from splitlearn.split.weights import (
    digest,
    load_layers_from_folder,
    load_weights,
    stands_still,
    trunk_groups,
    trunk_state,
)
from tests.tiny import ENCODERS, RELATIVE, real_model_folder, tiny_model

CUT = Cut(2, 4, Bottleneck("sft", 4), Bottleneck("sft", 6))


def trunks(model_type: str = "bert", *, cut: Cut = CUT) -> tuple[Trunk, Trunk]:
    """One with weights and the same without."""
    model = tiny_model(model_type)
    blueprint = trunk_model(model)
    _, full = split(factor(model, cut=cut, bases={}), cut=cut)
    return full, build_trunk(blueprint, cut=spec_of(cut))


@pytest.mark.parametrize("model_type", ENCODERS)
def test_the_two_groups_are_all_of_the_weights(model_type: str) -> None:
    full, _ = trunks(model_type)
    groups = trunk_groups(full)
    assert sorted(groups["layers"] + groups["bottlenecks"]) == sorted(full.state_dict())
    assert {name.split(".")[1] for name in groups["layers"]} == {"2"}
    assert {name.split(".")[0] for name in groups["bottlenecks"]} == {"receive", "send"}


@pytest.mark.parametrize("model_type", RELATIVE)
def test_a_table_of_relative_positions_is_one_of_the_layers_weights(model_type: str) -> None:
    full, empty = trunks(model_type, cut=Cut(1, 3))
    groups = trunk_groups(full)
    assert groups["bottlenecks"] == ()
    table = "table.relative_attention_bias.weight"
    assert [name for name in groups["layers"] if stands_still(name)] == [table]
    load_weights(empty, trunk_state(full, group="layers"), group="layers")
    h_BTD = torch.randn(2, 7, 32)
    with torch.no_grad():
        expected = full.eval()(h_BTD, lengths=(7, 3))
        assert torch.equal(empty.eval()(h_BTD, lengths=(7, 3)), expected)
        empty.get_parameter(table).add_(1.0 * torch.arange(8)[:, None])
        assert not torch.equal(empty(h_BTD, lengths=(7, 3)), expected)
    assert not empty.get_parameter(table).requires_grad


def test_a_trunk_without_a_bottleneck_has_one_group() -> None:
    full, _ = trunks(cut=Cut(1, 3))
    assert trunk_groups(full)["bottlenecks"] == ()


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_a_filled_trunk_computes_what_the_original_does_to_the_bit(model_type: str) -> None:
    full, empty = trunks(model_type)
    for group in ("layers", "bottlenecks"):
        load_weights(empty, trunk_state(full, group=group), group=group)
    z_BTR = torch.randn(2, 7, 4)
    with torch.no_grad():
        expected = full.eval()(z_BTR, lengths=(7, 3))
        assert torch.equal(empty.eval()(z_BTR, lengths=(7, 3)), expected)


def test_loaded_weights_are_copies_on_cache_lines() -> None:
    full, empty = trunks(cut=Cut(1, 3))
    state = {}
    for name, tensor in trunk_state(full, group="layers").items():
        line = torch.empty(tensor.numel() + 1)
        state[name] = line[1:].view(tensor.shape).copy_(tensor)
    load_weights(empty, state, group="layers")
    for tensor in state.values():
        tensor.fill_(0.0)
    assert digest(trunk_state(empty, group="layers")) == digest(trunk_state(full, group="layers"))
    assert all(p.data_ptr() % 64 == 0 for p in empty.parameters())


def test_loading_keeps_frozen_weights_frozen() -> None:
    full, empty = trunks(cut=Cut(1, 3))
    empty.requires_grad_(False)
    load_weights(empty, trunk_state(full, group="layers"), group="layers")
    assert not any(p.requires_grad for p in empty.parameters())


def test_missing_and_unknown_weights_are_named() -> None:
    full, empty = trunks()
    state = trunk_state(full, group="bottlenecks")
    state["send.extra"] = state.pop("send.scale.weight")
    with pytest.raises(
        WireError, match=r"missing \['send.scale.weight'\], not ours \['send.extra'\]"
    ):
        load_weights(empty, state, group="bottlenecks")


def test_the_other_groups_weights_are_not_taken() -> None:
    full, empty = trunks()
    with pytest.raises(WireError, match="not ours"):
        load_weights(empty, trunk_state(full, group="layers"), group="bottlenecks")


@pytest.mark.parametrize(
    "change",
    [lambda t: t.T, lambda t: t.half(), lambda t: t[..., None]],
    ids=["turned", "halved", "deeper"],
)
def test_a_weight_of_another_shape_or_type_is_refused_and_nothing_is_loaded(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    full, empty = trunks()
    state = trunk_state(full, group="bottlenecks")
    state["send.basis.weight"] = change(state["send.basis.weight"])
    with pytest.raises(WireError, match=r"send.basis.weight as .* needs torch.float32 of shape"):
        load_weights(empty, state, group="bottlenecks")
    assert all(p.is_meta for p in empty.parameters())


def test_the_digest_depends_on_name_type_shape_and_bytes_but_not_on_order() -> None:
    a, b = torch.arange(6.0), torch.ones(2)
    same = {digest({"a": a, "b": b}), digest({"b": b, "a": a.clone()})}
    other = [
        {"a": a, "c": b},
        {"a": a.view(2, 3), "b": b},
        {"a": a.view(torch.int32), "b": b},
        {"a": a + 1e-6, "b": b},
        {"a": -a * -1, "b": -b},
        {"a": a},
    ]
    assert len(same) == 1
    assert len({digest(state) for state in other} - same) == len(other)


def test_the_digest_sees_through_strides_and_reads_every_type() -> None:
    a = torch.arange(6.0).view(2, 3)
    assert digest({"a": a.T.contiguous().T}) == digest({"a": a})
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool):
        assert len(digest({"a": torch.ones((), dtype=dtype)})) == 64


def test_minus_zero_and_zero_have_different_digests() -> None:
    assert digest({"a": torch.zeros(1)}) != digest({"a": -torch.zeros(1)})


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_layers_read_from_the_folder_are_those_of_the_loaded_model(
    model_type: str, bare: bool, tmp_path: Path
) -> None:
    model, cut = tiny_model(model_type), CUT if model_type in ENCODERS else Cut(1, 3)
    (base_of(model) if bare else model).save_pretrained(tmp_path)
    blueprint = trunk_model(model)
    _, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
    found = load_layers_from_folder(tmp_path, model=blueprint, cut=spec_of(cut))
    assert digest(found) == digest(trunk_state(trunk, group="layers"))
    assert tuple(found) == trunk_groups(trunk)["layers"]


def test_layers_of_a_real_model_are_read_without_loading_it() -> None:
    cut = Cut(2, 5, upper=Bottleneck("sft", 8))
    model = AutoModelForSequenceClassification.from_pretrained(real_model_folder(), num_labels=3)
    blueprint = trunk_model(model)
    _, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
    found = load_layers_from_folder(real_model_folder(), model=blueprint, cut=spec_of(cut))
    assert digest(found) == digest(trunk_state(trunk, group="layers"))


def test_old_spelling_and_half_precision_are_read(tmp_path: Path) -> None:
    model = tiny_model("bert").to(torch.float16)
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in model.state_dict().items()
    }
    save_file(state, tmp_path / "model.safetensors")
    model = model.float()
    blueprint = trunk_model(model)
    _, trunk = split(factor(model, cut=Cut(1, 3), bases={}), cut=Cut(1, 3))
    found = load_layers_from_folder(tmp_path, model=blueprint, cut=spec_of(Cut(1, 3)))
    assert digest(found) == digest(trunk_state(trunk, group="layers"))


def test_sharded_weights_are_read_and_only_the_shards_needed(tmp_path: Path) -> None:
    model = tiny_model("roberta")
    model.save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    inner = {n: t for n, t in whole.items() if ".layer.1." in n or ".layer.2." in n}
    save_file(inner, tmp_path / "b.safetensors")  # the other shard does not even exist
    names = {n: "b.safetensors" if n in inner else "a.safetensors" for n in whole}
    index = {"metadata": {"total_size": 1}, "weight_map": names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    blueprint = trunk_model(model)
    _, trunk = split(factor(model, cut=Cut(1, 3), bases={}), cut=Cut(1, 3))
    found = load_layers_from_folder(tmp_path, model=blueprint, cut=spec_of(Cut(1, 3)))
    assert digest(found) == digest(trunk_state(trunk, group="layers"))


def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    model = tiny_model("bert")
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    folder.mkdir()
    model.save_pretrained(outside)
    names = dict.fromkeys(model.state_dict(), "../outside/model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ManifestError, match="cannot be read"):
        load_layers_from_folder(folder, model=trunk_model(model), cut=spec_of(Cut(1, 3)))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no readable safetensors weights"):
        load_layers_from_folder(
            tmp_path, model=trunk_model(tiny_model("bert")), cut=spec_of(Cut(1, 3))
        )


@pytest.mark.parametrize("junk", [b"", b"\0" * 8, b"\xff" * 64])
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_damaged_folder_is_refused(name: str, junk: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(junk)
    with pytest.raises(ManifestError, match="no readable safetensors weights"):
        load_layers_from_folder(
            tmp_path, model=trunk_model(tiny_model("bert")), cut=spec_of(Cut(1, 3))
        )


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    tiny_model("bert", layers=2).save_pretrained(tmp_path)
    with pytest.raises(ManifestError, match=r"no weights named ...encoder.layer.2.*another model"):
        load_layers_from_folder(
            tmp_path, model=trunk_model(tiny_model("bert")), cut=spec_of(Cut(1, 3))
        )
    with pytest.raises(ManifestError, match=r"of shape .* another model"):
        load_layers_from_folder(
            real_model_folder(), model=trunk_model(tiny_model("bert")), cut=spec_of(Cut(1, 3))
        )
