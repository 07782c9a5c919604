"""Steppers against the optimisers and schedules that they are made of."""

import pytest
import torch
from torch import nn

from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.wire.messages import OptimiserSpec, ScheduleSpec


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_two_halves_stepped_apart_equal_the_whole_stepped_at_once(name: str, schedule: str) -> None:
    spec = OptimiserSpec(name, 0.1, 0.1, 0.9, 0.999, 1e-8)  # type: ignore[arg-type]
    plan = ScheduleSpec(schedule, 1, 8)  # type: ignore[arg-type]
    torch.manual_seed(1)
    whole = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    halves = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    halves.load_state_dict(whole.state_dict())
    steppers = [build_stepper(half.parameters(), optimiser=spec, schedule=plan) for half in halves]
    one = build_stepper(whole.parameters(), optimiser=spec, schedule=plan)
    for i in range(6):
        x = torch.full((2, 3), float(i))
        for model in (whole, halves):
            model(x).square().mean().backward()
        one.step()
        for stepper in steppers:
            stepper.step()
    for name_, value in whole.state_dict().items():
        assert torch.equal(value, halves.state_dict()[name_])


def test_weight_decay_is_for_matrices() -> None:
    layer = nn.Linear(2, 2)
    stepper = build_stepper(
        layer.parameters(),
        optimiser=OptimiserSpec("adamw", 1.0, 0.5, 0.9, 0.999, 1e-8),
        schedule=ScheduleSpec("constant", 0, 1),
    )
    before = layer.weight.clone(), layer.bias.clone()
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    stepper.step()
    assert torch.equal(layer.weight, before[0] * 0.5)
    assert torch.equal(layer.bias, before[1])
    assert layer.weight.grad is None


def test_a_step_not_finished_is_forgotten() -> None:
    layer = nn.Linear(1, 1)
    stepper = build_stepper(
        layer.parameters(),
        optimiser=OptimiserSpec("sgd", 1.0, 0.0, 0.9, 0.999, 1e-8),
        schedule=ScheduleSpec("constant", 0, 1),
    )
    layer(torch.ones(1, 1)).sum().backward()
    stepper.clear()
    assert layer.weight.grad is None
