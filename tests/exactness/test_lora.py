"""Ten steps with adapters, split against unsplit: losses and all that trained, to the bit."""

import copy
from pathlib import Path

import pytest
import torch

from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import freeze
from splitlearn.split.lora import Where, adapt, blocks_of, trained_state
from splitlearn.split.stage import factor
from splitlearn.wire.messages import LoraSpec
from tests.exactness.test_engine import STEPS, batches
from tests.rig import run_in_memory, train_unsplit, trusted_run
from tests.tiny import tiny_model

CUT = Cut(1, 3)
BERT = ("attention.self.query", "attention.self.value")
DISTILBERT = ("attention.q_lin", "attention.out_lin", "ffn.lin1")


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize(
    ("family", "targets", "where", "train_bottom", "cut"),
    [
        ("bert", BERT, "trunk", False, CUT),
        ("bert", BERT, "all", True, CUT),
        ("distilbert", DISTILBERT, "all", False, CUT),
        ("bert", BERT, "trunk", True, Cut(1, 3, upper=Bottleneck("sft", 4))),
    ],
    ids=["trunk", "all", "distilbert", "narrow"],
)
def test_a_split_run_with_adapters_is_the_unsplit_run(
    tmp_path: Path,
    family: str,
    targets: tuple[str, ...],
    where: Where,
    train_bottom: bool,
    cut: Cut,
    micro: int,
) -> None:
    model = tiny_model(family)
    whole = factor(copy.deepcopy(model), cut=cut, bases={})
    spec = LoraSpec(rank=4, alpha=8.0, dropout=0.0, targets=targets, seed=5)
    adapt(blocks_of(whole, cut=cut, where=where, train_bottom=train_bottom), spec)
    freeze(whole, cut=cut, mode="lora", train_bottom=train_bottom)
    run = trusted_run(
        model, cut=cut, total=STEPS, mode="lora", train_bottom=train_bottom, lora=spec, where=where
    )
    steps = lambda step: batches(model, step, micro=micro)  # noqa: E731
    expected = train_unsplit(whole, run, steps=steps)
    before = {name: tensor.clone() for name, tensor in run.groups["adapters"].items()}
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == expected
    wanted, here = trained_state(whole), trained_state(result.local)
    # Only what trained came back, and every adapter did train.
    assert before.keys() <= result.trunk.keys()
    assert all(not torch.equal(before[name], result.trunk[name]) for name in before)
    assert len(wanted) == len(here) + len(result.trunk)
    path = {"bert": "bert.encoder.layer", "distilbert": "distilbert.transformer.layer"}[family]
    for name, tensor in {**here, **result.trunk}.items():
        if name.startswith("layers."):
            # Numbers in the list of modules: a narrow cut has modules of its own in it, above these.
            assert torch.equal(tensor, wanted[f"{path}.{name.removeprefix('layers.')}"]), name
        elif not name.startswith(path) and "." in name and not name.startswith("send"):
            assert torch.equal(tensor, wanted[name]), name


def test_dropout_before_adapters_is_drawn_again_alike(tmp_path: Path) -> None:
    def losses(dropout: float, place: str) -> list[float]:
        model = tiny_model("bert")
        spec = LoraSpec(rank=4, alpha=8.0, dropout=dropout, targets=BERT, seed=5)
        run = trusted_run(model, cut=CUT, total=3, mode="lora", train_bottom=False, lora=spec)
        return run_in_memory(tmp_path / place, run, steps=lambda step: batches(model, step)).losses

    assert losses(0.5, "one") == losses(0.5, "two") != losses(0.0, "three")
