"""Interleaved steps against a plain loop over one whole model with explicit versions of its weights.

The loop knows no schedule, no link and no party: step t takes its gradient at the weights after
max(t - staleness, last drain) steps, and adds its micro-batches up in their order. Losses and final
weights are equal to the bit, dropout included, whatever the window and the order of the schedule.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.state.seeds import stage_seed
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.split.anatomy import layers_of
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import freeze, set_training
from splitlearn.tasks.batches import Batch
from tests.exactness.test_engine import whole_weights
from tests.rig import batch_of, run_in_memory, trusted_run
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
STEPS = 10
EVERY = 4


def batches(model: PreTrainedModel, step: int, *, micro: int = 2) -> list[Batch]:
    """Different padded micro-batches at each step."""
    return [
        batch_of(tiny_batch(model, lengths=(9 - i % 3, 4 + step % 3), width=9, seed=99 * step + i))
        for i in range(micro)
    ]


def loss_of(model: PreTrainedModel, batch: Batch, run: TrustedRun, *, step: int, i: int) -> Tensor:
    """One forward of the whole model, dropout drawn stage by stage as three stages would."""

    def draw(stage: str) -> None:
        torch.manual_seed(stage_seed(run.offer.seed, step=step, micro_batch=i, stage=stage))

    layers = layers_of(model)
    hooks = [
        layers[place].register_forward_pre_hook(lambda *_, stage=stage: draw(stage))  # type: ignore[misc]
        for place, stage in ((CUT.first, "trunk"), (CUT.last, "top"))
    ]
    draw("bottom")
    loss: Tensor = model(**batch.inputs, **batch.labels)["loss"]
    for hook in hooks:
        hook.remove()
    return loss


def with_versions(
    model: PreTrainedModel, run: TrustedRun, *, steps: Sequence[list[Batch]], drains: Sequence[int]
) -> tuple[list[float], dict[str, Tensor]]:
    """The plain loop. drains: steps before which everything is drained."""
    spec = run.offer.schedule
    stepper = build_stepper(model.parameters(), optimiser=run.offer.optimiser, schedule=spec)
    set_training(model, training=True)
    versions, losses = [copy.deepcopy(model)], []
    for step, micro in enumerate(steps):
        drained = max(d for d in drains if d <= step)
        used = copy.deepcopy(versions[max(step - spec.staleness, drained)])
        mean = torch.zeros(())
        for i, batch in enumerate(micro):
            share = batch.items / sum(each.items for each in micro)
            loss = loss_of(used, batch, run, step=step, i=i) * share
            loss.backward()
            mean += loss.detach()
        losses.append(mean.item())
        for mine, theirs in zip(model.parameters(), used.parameters(), strict=True):
            mine.grad = theirs.grad
        stepper.step()
        versions.append(copy.deepcopy(model))
    return losses, model.state_dict()


@pytest.mark.parametrize(("order", "in_flight"), [("1f1b", 8), ("1f1b", 1), ("fill-drain", 3)])
@pytest.mark.parametrize("staleness", [1, 2])
def test_interleaved_steps_are_a_plain_loop_with_versions(
    tmp_path: Path, staleness: int, order: str, in_flight: int
) -> None:
    check(tmp_path, staleness=staleness, order=order, in_flight=in_flight)


@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_so_they_are_in_other_families(tmp_path: Path, family: str) -> None:
    check(tmp_path, staleness=2, family=family)


@pytest.mark.parametrize("staleness", [1, 4])
def test_a_frozen_bottom_stays_frozen_and_the_rest_is_as_stale_as_ever(
    tmp_path: Path, staleness: int
) -> None:
    check(tmp_path, staleness=staleness, train_bottom=False)


def test_settlements_drain_where_the_count_of_messages_says(tmp_path: Path) -> None:
    """Twelve micro-batches of four messages are 48 a step: five steps stay below 256 messages."""
    check(tmp_path, staleness=1, micro=12, every=100, drains=(0, 5))


def test_in_features_mode_no_number_changes(tmp_path: Path) -> None:
    model = tiny_model("bert", dropout=0.2)
    found = []
    for staleness in (0, 2):
        mine = copy.deepcopy(model)
        run = trusted_run(
            mine,
            cut=CUT,
            total=STEPS,
            mode="features",
            train_bottom=False,
            every=EVERY,
            staleness=staleness,
        )
        result = run_in_memory(
            tmp_path / str(staleness), run, steps=lambda step: batches(model, step)
        )
        found.append((result.losses, result.local.state_dict()))
    (losses, weights), (others, other_weights) = found
    assert losses == others
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def check(
    tmp_path: Path,
    *,
    staleness: int,
    family: str = "bert",
    order: str = "1f1b",
    in_flight: int = 8,
    train_bottom: bool = True,
    micro: int = 2,
    every: int = EVERY,
    drains: Sequence[int] = (0, 4, 8),
) -> None:
    model = tiny_model(family, dropout=0.2)
    whole = copy.deepcopy(model)
    freeze(whole, cut=CUT, mode="full", train_bottom=train_bottom)
    run = trusted_run(
        model, cut=CUT, total=STEPS, every=every, train_bottom=train_bottom, staleness=staleness
    )
    run = replace(run, order=order, in_flight=in_flight)
    steps = [batches(model, step, micro=micro) for step in range(STEPS)]
    expected, weights = with_versions(whole, run, steps=steps, drains=drains)
    result = run_in_memory(tmp_path, run, steps=lambda step: steps[step])
    assert result.losses == expected
    found = whole_weights(result, CUT, result.trunk)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, found[name]), name
