import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import layers_of
from splitlearn.split.blueprint import build_trunk, trunk_model
from splitlearn.split.bottleneck import fit_pca
from splitlearn.split.cut import Bottleneck, Cut, spec_of
from splitlearn.split.freeze import freeze, set_training
from splitlearn.split.merge import CUT_FILE, load_merged, merged, save_merged
from splitlearn.split.side import (
    Ladder,
    SideNetwork,
    SideStage,
    TappedTrunk,
    Taps,
    put_side,
    tap,
    taps_of,
)
from splitlearn.split.stage import RemoteStage, factor, remote_stage, split
from splitlearn.split.weights import load_weights, trunk_groups, trunk_state
from splitlearn.wire.messages import SideSpec
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
SPEC = SideSpec(taps=(1, 2), rank=8)


def beside(family: str = "bert", *, cut: Cut = CUT) -> tuple[nn.Module, TappedTrunk]:
    model = tiny_model(family)
    public = [tiny_batch(model, seed=s).inputs for s in range(4)]
    bases = {layer: fit_pca(model, public, layer=layer + 1, rank=SPEC.rank) for layer in SPEC.taps}
    local, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
    put_side(local, SPEC, width=32, basis=bases[2], seed=3)
    return local, tap(trunk, SPEC, bases=bases)


def test_a_decoder_gets_none() -> None:
    with pytest.raises(ManifestError, match=r"sees the tokens that a qwen3 model is to say"):
        beside("qwen3")


@pytest.mark.parametrize(
    ("count", "taps"), [(1, (7,)), (2, (4, 7)), (3, (3, 5, 7)), (9, (2, 3, 4, 5, 6, 7))]
)
def test_taps_are_spread_and_the_last_layer_is_one(count: int, taps: tuple[int, ...]) -> None:
    assert taps_of(Cut(2, 8), count=count) == taps


def test_a_tapped_trunk_gives_projections_of_its_layers_outputs() -> None:
    _, trunk = beside()
    h_BTD = torch.randn(2, 5, 32)
    with torch.no_grad():
        z_BTK = trunk.eval()(h_BTD, lengths=(5, 3))
        assert isinstance(trunk.send, Taps)
        seen = []
        _, plain = split(factor(tiny_model("bert"), cut=CUT, bases={}), cut=CUT)
        for layer in plain.layers.values():
            layer.register_forward_hook(lambda _m, _i, out: seen.append(out))
        plain.eval()(h_BTD, lengths=(5, 3))
        expected = [down(h) for down, h in zip(trunk.send.downs.values(), seen, strict=True)]
    assert z_BTK.shape == (2, 5, 16)
    assert torch.equal(z_BTK, torch.cat(expected, dim=2))
    # Nothing of one forward is left for the next, or in the weights' names.
    assert {name.partition(".")[0] for name in trunk.state_dict()} == {"layers", "send"}


def test_a_run_begins_as_the_model_that_pca_cuts_there() -> None:
    local, trunk = beside()
    model = merged(local, trunk=trunk, cut=CUT)
    narrow = Cut(1, 3, upper=Bottleneck("pca", 8))
    reference = tiny_model("bert")
    public = [tiny_batch(reference, seed=s).inputs for s in range(4)]
    factor(reference, cut=narrow, bases={"upper": fit_pca(reference, public, layer=3, rank=8)})
    made = tiny_batch(reference)
    with torch.no_grad():
        expected = reference.eval()(**made.inputs)["logits"]
        torch.testing.assert_close(model(**made.inputs)["logits"], expected)


def test_only_the_network_and_what_is_above_it_train_and_the_last_taps_way_back_does_not() -> None:
    local, _ = beside()
    freeze(local, cut=CUT, mode="side", train_bottom=False)
    stage = remote_stage(local)
    assert isinstance(stage, SideStage)
    assert {p.requires_grad for p in stage.network.restore.parameters()} == {False}
    others = [p for n, p in stage.network.named_parameters() if not n.startswith("restore")]
    assert {p.requires_grad for p in others} == {True}
    below, _, above = layers_of(local)
    assert {p.requires_grad for p in below.parameters()} == {False}
    assert {p.requires_grad for p in above.parameters()} == {True}
    assert {p.requires_grad for p in local.bert.embeddings.parameters()} == {False}
    assert {p.requires_grad for p in local.classifier.parameters()} == {True}
    set_training(local, training=True)
    assert not below.training
    assert stage.network.blocks.training


def test_the_networks_first_weights_follow_from_the_seed_and_take_nothing_from_the_generator() -> (
    None
):
    state = torch.get_rng_state()
    one, two = (remote_stage(beside()[0]).network.state_dict() for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_padding_is_not_attended_to() -> None:
    network = remote_stage(beside()[0]).network.eval()
    nn.init.normal_(network.widen.weight)
    z_BTK = torch.randn(1, 5, 16)
    mask = torch.tensor([True, True, True, False, False]).view(1, 1, 1, 5).expand(1, 1, 5, 5)
    other = z_BTK.clone()
    other[:, 3:] = torch.randn(1, 2, 16)
    with torch.no_grad():
        assert torch.equal(network(z_BTK, mask)[:, :3], network(other, mask)[:, :3])
        assert not torch.allclose(network(z_BTK, None)[:, :3], network(other, None)[:, :3])


@pytest.mark.parametrize(
    ("spec", "cut"),
    [
        (SideSpec((0, 2), 8), CUT),
        (SideSpec((2, 1), 8), CUT),
        (SideSpec((1, 1), 8), CUT),
        (SideSpec((1,), 33), CUT),
        (SPEC, Cut(1, 3, upper=Bottleneck("sft", 4))),
    ],
)
def test_a_peers_taps_are_checked_before_anything_is_built(spec: SideSpec, cut: Cut) -> None:
    trunk = build_trunk(trunk_model(tiny_model("bert")), cut=spec_of(cut))
    with pytest.raises(WireError, match="the peer taps"):
        tap(trunk, spec, bases={})


def test_a_peers_tapped_trunk_is_filled_by_its_groups() -> None:
    _, full = beside()
    empty = tap(build_trunk(trunk_model(tiny_model("bert")), cut=spec_of(CUT)), SPEC, bases={})
    assert {n.split(".")[0] for n in trunk_groups(empty)["bottlenecks"]} == {"send"}
    for group in ("layers", "bottlenecks"):
        load_weights(empty, trunk_state(full, group=group), group=group)
    h_BTD = torch.randn(2, 5, 32)
    with torch.no_grad():
        expected = full.eval()(h_BTD, lengths=(5, 3))
        assert torch.equal(empty.eval()(h_BTD, lengths=(5, 3)), expected)


@pytest.mark.parametrize("cut", [CUT, Cut(1, 3, lower=Bottleneck("sft", 8))], ids=["", "narrow"])
def test_a_merged_model_with_a_ladder_is_saved_and_loaded_to_the_bit(
    tmp_path: Path, cut: Cut
) -> None:
    local, trunk = beside(cut=cut)
    nn.init.normal_(remote_stage(local).network.widen.weight)
    model = merged(local, trunk=trunk, cut=cut)
    (ladder,) = (m for m in layers_of(model) if isinstance(m, Ladder))
    assert ladder.taps == SPEC.taps
    # Copied, not moved.
    assert isinstance(remote_stage(local), SideStage)
    assert ladder.network is not remote_stage(local).network
    save_merged(tmp_path, model=model, cut=cut)
    assert not (tmp_path / "model.safetensors").exists()
    assert '"taps"' in (tmp_path / CUT_FILE).read_text()
    loaded = load_merged(tmp_path)
    made = tiny_batch(model)
    with torch.no_grad():
        expected = model(**made.inputs)["logits"]
        assert torch.equal(loaded(**made.inputs)["logits"], expected)


def test_a_copy_of_the_stage_is_an_empty_place() -> None:
    stage = SideStage(remote_stage(beside()[0]).network)
    assert type(copy.deepcopy(stage)) is RemoteStage
    assert isinstance(stage.network, SideNetwork)
