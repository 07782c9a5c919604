"""The trusted party's work on a stretch of steps that interleave, for a schedule.staleness above 0.

As the engine's own loop over one step, with two differences: the next step's activations leave before
this one's gradients are back, and every micro-batch runs with the version of the weights that its step
uses. The order of all sums is the schedule's; no number depends on the link.
"""

# B batch, T tokens, D width at a cut

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from splitlearn.engine.events import StepDone
from splitlearn.engine.exchange import Exchange
from splitlearn.engine.flight import Flight
from splitlearn.engine.optimiser import Stepper
from splitlearn.engine.seeds import seeded
from splitlearn.engine.talk import Talk
from splitlearn.engine.versions import Versions
from splitlearn.pipeline import Action, Op
from splitlearn.pipeline.stretch import interleaved, until_drained
from splitlearn.roles import Kind
from splitlearn.session import MAX_UNSETTLED
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Offer, StepTensor

if TYPE_CHECKING:
    from splitlearn.engine.trusted import TrustedRun

__all__ = ["Stretch", "staleness_of"]


class Bottom(Protocol):
    """Start a micro-batch's forward and send its activation."""

    def __call__(
        self, batch: Batch, place: StepTensor, *, labels: bool
    ) -> tuple[Flight, Tensor]: ...


class Backward(Protocol):
    """From a micro-batch's loss to the gradients of the top and of what came to it."""

    def __call__(self, loss: Tensor, output: ModelOutput, batch: Batch, *, items: int) -> None: ...


@dataclass
class _Step:
    """A step under way."""

    batches: Sequence[Batch]
    items: int
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    flights: dict[int, tuple[Flight, Tensor]] = field(default_factory=dict)


def staleness_of(offer: Offer) -> int:
    """By how many steps weights may be behind.

    In mode "features" what crosses the cuts depends on no trained weight, so interleaved steps go
    with the newest ones: they change no number.
    """
    return 0 if offer.mode == "features" else offer.schedule.staleness


@dataclass
class Stretch:
    """Works through one stretch after the other.

    kept: steps whose batches were asked for, which outlive a stretch by one. updated: told of each step
    once it is applied; its seconds and bytes are those since the step before was.
    """

    run: "TrustedRun"
    talk: Talk
    link: Exchange
    stepper: Stepper
    bottom: Bottom
    backward: Backward
    updated: Callable[[StepDone], None]
    kept: dict[int, _Step] = field(default_factory=dict)
    versions: Versions = field(init=False)
    _mark: tuple[float, int, int] = (0.0, 0, 0)

    def __post_init__(self) -> None:
        stale, step = staleness_of(self.run.offer), self.talk.session.next_step
        self.versions = Versions(self.run.local, staleness=stale, step=step)

    def work(self, steps: Callable[[int], Sequence[Batch]], *, first: int) -> None:
        """Train from step `first`, with nothing under way, to where the parties are drained again."""
        self.versions.drained(first)
        self._mark = self._now()
        run, offer = self.run, self.run.offer
        counts = until_drained(
            self._counts(steps, first),
            first=first,
            every=run.every,
            kinds=2 if offer.mode == "features" else 4 if offer.returns_input_gradient else 3,
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
        self.talk.flush()
        before, self._mark = self._mark, self._now()
        seconds, sent, received = (b - a for a, b in zip(before, self._mark, strict=True))
        loss = self.kept.pop(number).mean.item()
        self.updated(StepDone(number, loss, seconds, int(sent), int(received)))

    def _now(self) -> tuple[float, int, int]:
        return time.perf_counter(), self.talk.sent.total(), self.talk.received.total()

    def _counts(self, steps: Callable[[int], Sequence[Batch]], first: int) -> Iterator[int]:
        for number in range(first, self.run.offer.schedule.total_steps):
            if number not in self.kept:
                batches = steps(number)
                self.kept[number] = _Step(batches, sum(batch.items for batch in batches))
            yield len(self.kept[number].batches)

    def _act(self, action: Action, number: int) -> None:
        i, step = action.micro_batch, self.kept[number]
        batch = step.batches[i]
        place = self.link.place(batch, i, len(step.batches), phase="train", step=number)
        if action.op is Op.BOTTOM:
            with self.versions.using(number):
                step.flights[i] = self.bottom(batch, place, labels=True)
        elif action.op is Op.TOP:
            h_BTD = self.link.receive(Kind.OUTPUT, batch, place)
            h_BTD.requires_grad_(self.run.offer.mode != "features")
            seed = self.run.offer.seed
            with (
                self.versions.using(number),
                seeded(seed, step=number, micro_batch=i, stage="top"),
            ):
                output = step.flights[i][0].from_cut(h_BTD)
                loss = output["loss"] * (batch.items / step.items)
            self.backward(loss, output, batch, items=step.items)
            step.mean += loss.detach()
            if h_BTD.grad is not None:
                self.link.send(Kind.GRADIENT, h_BTD.grad, batch, place)
            if not self.run.offer.returns_input_gradient:
                del step.flights[i]
        else:
            g_BTD = self.link.receive(Kind.INPUT_GRADIENT, batch, place)
            torch.autograd.backward(step.flights.pop(i)[1], g_BTD)
