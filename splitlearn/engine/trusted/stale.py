"""The trusted party's work on a stretch of steps that interleave, for a schedule.staleness above 0.

As the engine's own loop over one step, with two differences: the next step's activations leave before
this one's gradients are back, and every micro-batch runs with the version of the weights that its step
uses. The order of all sums is the schedule's; no number depends on the link.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from splitlearn.engine.events import StepDone
from splitlearn.engine.state.optimiser import Stepper
from splitlearn.engine.state.versions import Versions, staleness_of
from splitlearn.engine.trusted.line import Line
from splitlearn.engine.trusted.passage import Passage
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.pipeline import Action, Op
from splitlearn.pipeline.stretch import interleaved, until_drained
from splitlearn.session import MAX_UNSETTLED
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor

__all__ = ["Stretch"]


class Backward(Protocol):
    """From a micro-batch's loss to the gradients of the top and of what came to it."""

    def __call__(self, loss: Tensor, output: ModelOutput, batch: Batch, *, items: int) -> None: ...


@dataclass
class _Step:
    """A step under way."""

    batches: Sequence[Batch]
    items: int
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    under_way: dict[int, Passage] = field(default_factory=dict)


@dataclass
class Stretch:
    """Works through one stretch after the other.

    line: of the one compute party. bottom: starts a micro-batch's forward and sends its activation.
    kept: steps whose batches were asked for, which outlive a stretch by one. updated: told of each step
    once it is applied; its seconds and bytes are those since the step before was.
    """

    run: TrustedRun
    line: Line
    stepper: Stepper
    bottom: Callable[[Batch, StepTensor], Passage]
    backward: Backward
    updated: Callable[[StepDone], None]
    kept: dict[int, _Step] = field(default_factory=dict)
    versions: Versions = field(init=False)
    _mark: tuple[float, int, int] = (0.0, 0, 0)

    def __post_init__(self) -> None:
        stale, step = staleness_of(self.run.offer), self.line.talk.session.next_step
        self.versions = Versions(self.run.local, staleness=stale, step=step)

    def settle(self) -> None:
        """Between two stretches, by count alone: no number may depend on the clock."""
        if self.line.talk.session.unsettled:
            self.line.talk.settle()

    def work(self, steps: Callable[[int], Sequence[Batch]], *, first: int) -> None:
        """Train from step `first`, with nothing under way, to where the parties are drained again."""
        self.versions.drained(first)
        self._mark = self._now()
        run, offer = self.run, self.run.offer
        counts = until_drained(
            self._counts(steps, first),
            first=first,
            every=run.every,
            kinds=2 if not offer.trains_trunk else 4 if offer.returns_input_gradient else 3,
            most=MAX_UNSETTLED,
        )
        for turn in interleaved(
            counts,
            staleness=offer.schedule.staleness,
            in_flight=run.in_flight,
            backward=offer.returns_input_gradient,
            order=run.order,
        ):
            number = first + turn.step
            if turn.action is None:
                self.versions.update(number, stepper=self.stepper)
                self._tell(number)
            else:
                self._act(turn.action, number)

    def _tell(self, number: int) -> None:
        self.line.talk.flush()
        before, self._mark = self._mark, self._now()
        seconds, sent, received = (b - a for a, b in zip(before, self._mark, strict=True))
        loss = self.kept.pop(number).mean.item()
        self.updated(StepDone(number, loss, seconds, int(sent), int(received)))

    def _now(self) -> tuple[float, int, int]:
        return time.perf_counter(), self.line.sent.total(), self.line.received.total()

    def _counts(self, steps: Callable[[int], Sequence[Batch]], first: int) -> Iterator[int]:
        for number in range(first, self.run.offer.schedule.total_steps):
            if number not in self.kept:
                batches = steps(number)
                self.kept[number] = _Step(batches, sum(batch.items for batch in batches))
            yield len(self.kept[number].batches)

    def _act(self, action: Action, number: int) -> None:
        i, step = action.micro_batch, self.kept[number]
        batch = step.batches[i]
        if action.op is Op.BOTTOM:
            place = self.line.tensors.place(batch, i, len(step.batches), phase="train", step=number)
            with self.versions.using(number):
                step.under_way[i] = self.bottom(batch, place)
        elif action.op is Op.TOP:
            with self.versions.using(number):
                output = step.under_way[i].top()
            loss = output["loss"] * (batch.items / step.items)
            self.backward(loss, output, batch, items=step.items)
            step.mean = step.mean + loss.detach()  # which may be on another device
            step.under_way[i].turn()
            if not self.run.offer.returns_input_gradient:
                del step.under_way[i]
        else:
            step.under_way.pop(i).backward(action.party)
