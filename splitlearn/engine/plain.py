"""The unsplit loop: one process, one model, the same batches, seeds, optimiser and schedule.

What a split run is measured against: its losses have to be these, to the bit, and its time is
reported as a multiple of this one's.
"""

# B batch, T tokens

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from splitlearn.engine.events import Evaluated, Observe, StepDone
from splitlearn.engine.state.clipping import clip
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.state.seeds import seeded
from splitlearn.split.freeze import set_training
from splitlearn.tasks.batches import Batch
from splitlearn.tasks.score import told
from splitlearn.wire.messages import OptimiserSpec, ScheduleSpec

__all__ = ["evaluate_plain", "train_plain"]


def train_plain(
    model: nn.Module,
    *,
    steps: Callable[[int], Sequence[Batch]],
    optimiser: OptimiserSpec,
    schedule: ScheduleSpec,
    seed: int,
    observe: Observe,
    clip_norm: float | None = None,
) -> list[float]:
    """Train what is not frozen for `schedule.total_steps` steps; the loss of each.

    clip_norm: how long the whole gradient may be; ManifestError where it is not finite then.
    """
    stepper = build_stepper(model.parameters(), optimiser=optimiser, schedule=schedule)
    set_training(model, training=True)
    losses: list[float] = []
    for step in range(schedule.total_steps):
        began = time.perf_counter()
        batches = steps(step)
        total = sum(batch.items for batch in batches)
        mean = torch.zeros(())
        for i, batch in enumerate(batches):
            with seeded(seed, step=step, micro_batch=i, stage="plain"):
                loss = model(**batch.inputs, **batch.labels)["loss"] * (batch.items / total)
            loss.backward()
            mean += loss.detach()
        norm = None if clip_norm is None else clip(stepper, limit=clip_norm, step=step)
        stepper.step()
        losses.append(mean.item())
        observe(StepDone(step, losses[-1], time.perf_counter() - began, 0, 0, norm))
    return losses


def evaluate_plain(
    model: nn.Module, *, batches: Iterable[Batch], observe: Observe
) -> list[dict[str, Tensor]]:
    """What `told` keeps of the model's output for each batch."""
    model.eval()
    outputs: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for batch in batches:
            outputs.append(told(model(**batch.seen), batch))
            observe(Evaluated(len(outputs)))
    return outputs
