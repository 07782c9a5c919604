"""A run on another device is the same run; in bf16 it is nearly so, and repeatable."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from torch.testing import assert_close

from splitlearn.engine.device import Device
from splitlearn.engine.run import TrustedRun
from splitlearn.split.cut import Cut
from tests.elsewhere import ELSEWHERE, move
from tests.exactness.test_engine import batches
from tests.rig import Result, run_in_memory, trusted_run
from tests.tiny import DECODERS, ENCODERS, WRITERS, tiny_model

CUT = Cut(1, 3)
THERE = Device(ELSEWHERE)


def trained(folder: Path, run: TrustedRun, *, ours: Device = THERE, theirs: Device = THERE) -> Result:
    model = copy.deepcopy(run.local)
    if ours is THERE:
        move(model)
    run = replace(run, local=model, device=ours)
    return run_in_memory(folder, run, steps=lambda step: batches(model, step), device=theirs)


def assert_alike(one: Result, two: Result) -> None:
    """But for a last bit where a product depends on how memory lies."""
    assert one.losses == pytest.approx(two.losses, rel=1e-6)
    assert one.trunk.keys() == two.trunk.keys()
    ours, theirs = dict(one.local.named_parameters()), dict(two.local.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in {**one.trunk, **ours}.items():
        other = two.trunk[name] if name in two.trunk else theirs[name]
        assert_close(other.cpu(), tensor.cpu(), rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS, *WRITERS])
def test_both_parties_elsewhere_compute_what_they_do_here(tmp_path: Path, family: str) -> None:
    run = trusted_run(tiny_model(family, dropout=0.1), cut=CUT, total=2)
    here = trained(tmp_path / "here", run, ours=Device(), theirs=Device())
    there = trained(tmp_path / "there", run)
    assert {p.device for p in there.local.parameters()} == {ELSEWHERE}
    assert_alike(here, there)
