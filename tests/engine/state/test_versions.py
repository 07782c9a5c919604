"""Versions of weights against copies made by hand, and what they may not hold on to."""

import copy
import gc
import weakref

import msgspec
import pytest
import torch
from torch import Tensor, nn

from splitlearn.engine.state.optimiser import Stepper, build_stepper
from splitlearn.engine.state.versions import Versions, staleness_of
from splitlearn.split.cut import Cut
from splitlearn.wire.messages import OptimiserSpec, ScheduleSpec
from tests.rig import trusted_run
from tests.tiny import tiny_model

ADAMW = OptimiserSpec("adamw", 0.1, 0.1, 0.9, 0.999, 1e-8)


class Tied(nn.Module):
    """Two linears, a frozen one between, and a parameter that stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = (nn.Linear(3, 3) for _ in range(3))
        self.frozen.requires_grad_(False)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.again(self.last(self.frozen(self.first(x))))
        return y


def made() -> tuple[Tied, Stepper]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = Tied()
    stepper = build_stepper(
        module.parameters(), optimiser=ADAMW, schedule=ScheduleSpec("constant", 0, 9)
    )
    return module, stepper


def loss(module: nn.Module, step: int) -> Tensor:
    return module(torch.full((2, 3), 1.0 + step)).square().mean()


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_each_step_is_of_the_weights_so_many_steps_before_it(staleness: int) -> None:
    module, stepper = made()
    versions = Versions(module, staleness=staleness, step=0)
    other, other_stepper = made()
    known = [copy.deepcopy(other)]
    for step in range(8):
        old = copy.deepcopy(known[max(0, step - staleness)])
        loss(old, step).backward()
        for mine, theirs in zip(other.parameters(), old.parameters(), strict=True):
            mine.grad = theirs.grad
        other_stepper.step()
        known.append(copy.deepcopy(other))

    graphs: dict[int, Tensor] = {}
    for step in range(8 + staleness):
        if step < 8:
            with versions.using(step):
                graphs[step] = loss(module, step)
        if step >= staleness:
            graphs.pop(step - staleness).backward()
            versions.update(step - staleness, stepper=stepper)
        assert versions.live <= staleness + 1
    for name, value in other.state_dict().items():
        assert torch.equal(value, module.state_dict()[name]), name
    assert module.again.weight is module.first.weight


def test_gradients_of_steps_under_way_at_once_stay_apart() -> None:
    module, stepper = made()
    versions = Versions(module, staleness=1, step=0)
    with versions.using(0):
        first = loss(module, 0)
    with versions.using(1):
        second = loss(module, 1)
    second.backward()
    assert module.first.weight.grad is None
    first.backward()
    alone, alone_stepper = made()
    loss(alone, 0).backward()
    alone_stepper.step()
    versions.update(0, stepper=stepper)
    assert torch.equal(module.first.weight, alone.first.weight)


def test_after_a_drain_a_step_uses_the_newest_weights() -> None:
    module, stepper = made()
    versions = Versions(module, staleness=2, step=5)
    for step in (5, 6):
        with versions.using(step):
            loss(module, step).backward()
        versions.update(step, stepper=stepper)
    assert versions.live == 3
    versions.drained(7)
    assert versions.live == 1
    newest = loss(module, 7)
    for step in (7, 8, 9):
        with versions.using(step):
            assert torch.equal(loss(module, 7), newest)


def test_a_drain_in_the_middle_of_a_step_is_our_own_mistake() -> None:
    versions = Versions(made()[0], staleness=1, step=0)
    with versions.using(0):
        pass
    with pytest.raises(AssertionError, match="middle"):
        versions.drained(0)


def test_an_exception_inside_leaves_the_real_parameters_in_place() -> None:
    module, _ = made()
    before = dict(module.named_parameters(remove_duplicate=False))
    with pytest.raises(RuntimeError), Versions(module, staleness=1, step=0).using(0):
        raise RuntimeError
    after = dict(module.named_parameters(remove_duplicate=False))
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_old_versions_are_let_go() -> None:
    module, stepper = made()
    versions = Versions(module, staleness=1, step=0)
    storages: list[weakref.ref[Tensor]] = []
    for step in range(6):
        with versions.using(step):
            graph = loss(module, step)
            storages.append(weakref.ref(module.first.weight))
        graph.backward()
        del graph
        versions.update(step, stepper=stepper)
    gc.collect()
    assert [ref() for ref in storages] == [None] * 6
    assert versions.live == 2


def test_without_staleness_the_module_is_used_as_it_is() -> None:
    module, stepper = made()
    versions = Versions(module, staleness=0, step=0)
    weight, memory = module.first.weight, module.first.weight.data_ptr()
    with versions.using(0):
        assert module.first.weight is weight
        loss(module, 0).backward()
    versions.update(0, stepper=stepper)
    assert module.first.weight.data_ptr() == memory
    assert versions.live == 1
    other, other_stepper = made()
    loss(other, 0).backward()
    other_stepper.step()
    assert torch.equal(module.first.weight, other.first.weight)


def test_what_is_frozen_at_both_cuts_is_never_stale() -> None:
    offer = trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=2, staleness=2).offer
    assert staleness_of(offer) == 2
    assert staleness_of(msgspec.structs.replace(offer, mode="features")) == 0
