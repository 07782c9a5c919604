"""Saved states against the states they were saved from."""

import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.optimiser import Stepper, build_stepper
from splitlearn.errors import AuditError, ManifestError
from splitlearn.wire.messages import OptimiserSpec, ScheduleSpec

ADAMW = OptimiserSpec("adamw", 1e-2, 0.01, 0.9, 0.999, 1e-8)
LINEAR = ScheduleSpec("linear", 2, 20)


def made(width: int = 3) -> tuple[nn.Module, Stepper]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model, build_stepper(model.parameters(), optimiser=ADAMW, schedule=LINEAR)


def step(model: nn.Module, stepper: Stepper, times: int) -> None:
    for i in range(times):
        torch.manual_seed(i)
        model(torch.rand(5, 3)).square().mean().backward()
        stepper.step()


def test_a_run_from_a_checkpoint_goes_on_to_the_bit(tmp_path: Path) -> None:
    model, stepper = made()
    step(model, stepper, 4)
    Checkpoints(tmp_path).save(4, model=model, stepper=stepper, extra={"losses": [0.1, 0.2]})
    step(model, stepper, 5)
    again, again_stepper = made()
    extra = Checkpoints(tmp_path).load(4, model=again, stepper=again_stepper)
    step(again, again_stepper, 5)
    assert extra == {"losses": [0.1, 0.2]}
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_a_frozen_party_saves_and_loads_too(tmp_path: Path) -> None:
    model, _ = made()
    model.requires_grad_(False)
    frozen = build_stepper(model.parameters(), optimiser=ADAMW, schedule=LINEAR)
    frozen.step()
    frozen.clear()
    Checkpoints(tmp_path).save(7, model=model, stepper=frozen, extra={})
    assert Checkpoints(tmp_path).load(7, model=model, stepper=frozen) == {}


def test_the_newest_two_are_kept_and_newer_ones_dropped_on_request(tmp_path: Path) -> None:
    model, stepper = made()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.held() == ()
    for at in (0, 10, 20):
        checkpoints.save(at, model=model, stepper=stepper, extra={})
    assert checkpoints.held() == (10, 20)
    checkpoints.drop_after(10)
    assert checkpoints.held() == (10,)


def test_the_best_stays_beside_the_newest_and_is_what_is_taken(tmp_path: Path) -> None:
    model, stepper = made()
    checkpoints = Checkpoints(tmp_path)
    for at, best in ((0, None), (10, 10), (20, 10), (30, 10)):
        checkpoints.save(at, model=model, stepper=stepper, extra={}, best=best)
    assert checkpoints.held() == (10, 20, 30)
    assert checkpoints.best() == (10,)
    checkpoints.save(40, model=model, stepper=stepper, extra={}, best=40)
    assert checkpoints.held() == (30, 40)
    # 10 is gone, so of what was saved with it the state itself is left.
    assert checkpoints.best() == (30, 40)


def test_without_a_best_an_evaluation_may_take_all_that_is_held(tmp_path: Path) -> None:
    model, stepper = made()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.best() == ()
    for at in (10, 20):
        checkpoints.save(at, model=model, stepper=stepper, extra={})
    assert checkpoints.best() == (10, 20)
    (tmp_path / "20" / "state.json").write_text("{}")
    with pytest.raises(ManifestError, match="20 cannot be used"):
        checkpoints.best()


def test_a_half_written_checkpoint_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "30.part").mkdir()
    assert Checkpoints(tmp_path).held() == ()


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    model, stepper = made()
    Checkpoints(tmp_path).save(1, model=model, stepper=stepper, extra={})
    other = nn.Linear(9, 9)
    with pytest.raises(ManifestError, match="another model"):
        Checkpoints(tmp_path).load(1, model=other, stepper=stepper)


@pytest.mark.parametrize("file", ["weights.safetensors", "optimiser.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, file: str) -> None:
    model, stepper = made()
    Checkpoints(tmp_path).save(1, model=model, stepper=stepper, extra={})
    (tmp_path / "1" / file).write_bytes(b"{}")
    with pytest.raises(ManifestError, match=r"1 cannot be used"):
        Checkpoints(tmp_path).load(1, model=model, stepper=stepper)


def test_a_full_disk_leaves_the_older_checkpoint_and_no_half_one(tmp_path: Path) -> None:
    model, stepper = made()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model, stepper=stepper, extra={})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(AuditError, match="free space"):
            checkpoints.save(2, model=model, stepper=stepper, extra={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoints.held() == (1,)
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
