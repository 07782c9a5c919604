"""The loop of an encoder and a decoder in one process, written straight down: the same batches and steps.

What a run across a link is held against: its losses have to be these, to the bit.
"""

import time
from dataclasses import dataclass, field

import torch

from splitlearn.engine.events import Evaluated, Observe, StepDone
from splitlearn.engine.pair.decoding import mask_seed
from splitlearn.engine.pair.pairing import Corpus
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.translation import Objective, Source, SourceEncoder, TargetDecoder
from splitlearn.translation.objective import loss_of, mask_targets
from splitlearn.translation.order import Order
from splitlearn.translation.predict import mask_predict
from splitlearn.translation.text import Special, written
from splitlearn.wire.messages import OptimiserSpec, ScheduleSpec

__all__ = ["PlainPair"]


@dataclass(frozen=True)
class PlainPair:
    """Both halves and both sides of the text in one pair of hands."""

    encoder: SourceEncoder
    decoder: TargetDecoder
    source: Corpus
    target: Corpus
    special: Special
    objective: Objective = field(default_factory=Objective)

    def train(
        self,
        *,
        batch: int,
        optimiser: OptimiserSpec,
        schedule: ScheduleSpec,
        seed: int,
        observe: Observe,
    ) -> list[float]:
        """Train for `schedule.total_steps` steps; the loss of each."""
        steppers = [
            build_stepper(half.parameters(), optimiser=optimiser, schedule=schedule)
            for half in (self.encoder, self.decoder)
        ]
        sources, targets = self.source.train, self.target.train
        samples = sorted(set(sources.samples) & set(targets.samples))
        order = Order([targets.length(sample) for sample in samples], batch=batch, seed=seed)
        losses: list[float] = []
        for step in range(schedule.total_steps):
            began_s = time.perf_counter()
            names = [samples[i] for i in order(step)]
            read, target = sources.batch(names), targets.batch(names)
            with torch.set_grad_enabled(self.encoder.trains):
                rows_BSD = self.encoder(read.ids_BT, lengths=read.lengths)
            loss = loss_of(
                self.decoder,
                source=Source(rows_BSD, tuple(n + 1 for n in read.lengths)),
                targets=target,
                masked=mask_targets(
                    target, mask=self.special.mask, seed=mask_seed(seed, step=step)
                ),
                objective=self.objective,
            )
            torch.autograd.backward(loss)
            for stepper in steppers:
                stepper.step()
            losses.append(loss.item())
            observe(StepDone(step, losses[-1], time.perf_counter() - began_s, 0, 0))
        return losses

    @property
    def held_out(self) -> list[str]:
        """Names of the held-out samples that both sides have, in the order in which they are translated."""
        return sorted(set(self.source.evaluate.samples) & set(self.target.evaluate.samples))

    @torch.no_grad()
    def translate(
        self, *, observe: Observe, at_once: int = 32, iterations: int = 10, candidates: int = 3
    ) -> list[tuple[str, str]]:
        """The held-out samples that both sides have: (reference, translation)."""
        sources, targets = self.source.evaluate, self.target.evaluate
        samples = self.held_out
        out: list[tuple[str, str]] = []
        for start in range(0, len(samples), at_once):
            names = samples[start : start + at_once]
            read = sources.batch(names)
            found = mask_predict(
                self.decoder,
                Source(
                    self.encoder(read.ids_BT, lengths=read.lengths),
                    tuple(n + 1 for n in read.lengths),
                ),
                special=self.special,
                iterations=iterations,
                candidates=candidates,
            )
            out += [
                (targets.text(name), written(targets.tokenizer, words))
                for name, words in zip(names, found, strict=True)
            ]
            observe(Evaluated(len(out)))
        return out
