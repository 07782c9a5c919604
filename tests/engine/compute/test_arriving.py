"""Weights that lie here already; what a peer sends is held to in test_compute.py."""

from pathlib import Path

import pytest

from splitlearn.engine.compute.arriving import RunPlace, fill
from splitlearn.engine.payloads.weights import keep
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.weights import digest, trunk_state
from tests.rig import trusted_run
from tests.tiny import tiny_model

SFT = Cut(1, 3, upper=Bottleneck("sft", 4))


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    tiny_model("bert").save_pretrained(tmp_path / "model")
    return RunPlace(tmp_path / "checkpoints", tmp_path / "received", (tmp_path / "model",))


def test_layers_come_from_the_partys_own_folder_and_the_rest_has_to_be_sent(
    place: RunPlace,
) -> None:
    run = trusted_run(tiny_model("bert"), cut=SFT, total=1)
    trunk = build_trunk(run.offer.model, cut=run.offer.cut)
    assert fill(trunk, run.offer, place) == ("bottlenecks",)
    assert digest(trunk_state(trunk, group="layers")) == run.offer.layers


def test_what_was_kept_is_taken_under_its_digest_only(place: RunPlace) -> None:
    run = trusted_run(tiny_model("bert", seed=5), cut=SFT, total=1)
    bottlenecks = run.groups["bottlenecks"]
    keep(place.received, bottlenecks, name=run.offer.bottlenecks)
    keep(place.received, {n: t + 1 for n, t in run.groups["layers"].items()}, name=run.offer.layers)
    trunk = build_trunk(run.offer.model, cut=run.offer.cut)
    assert fill(trunk, run.offer, place) == ("layers",)
    assert digest(trunk_state(trunk, group="bottlenecks")) == run.offer.bottlenecks
