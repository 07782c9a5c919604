"""Sending micro-batches on their way: where each stands, the order of a group, the start of a forward.

Knows which outputs are kept, so that a group that needs nobody sends nothing.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from splitlearn.engine.payloads.coders import Phase
from splitlearn.engine.trusted.flight import Flight
from splitlearn.engine.trusted.outputs import Outputs
from splitlearn.engine.trusted.passage import Passage
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.engine.trusted.through import Way
from splitlearn.pipeline import ORDERS, Action
from splitlearn.split.anatomy import family_of, layers_of, walked_from
from splitlearn.split.stage import RemoteStage
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor

__all__ = ["Launcher"]


class Launcher:
    """Of one run. rows: those that crossed the first cut, by phase."""

    def __init__(self, run: TrustedRun, lines: Sequence[Way], *, folder: Path) -> None:
        """folder: of the run, for the outputs that it keeps, if it keeps any."""
        self._run, self._lines = run, lines
        stages = [isinstance(layer, RemoteStage) for layer in layers_of(run.local)]
        # Where the first layer hands a table's numbers on to all others, it has to run.
        self._bottom = 0 if family_of(run.local).table else stages.index(True)
        self.rows = {"train": 0, "evaluate": 0}
        self._outputs: Outputs | None = None
        if run.offer.detail.repeats:
            limit = run.cache_bytes
            self._outputs = Outputs(folder, run.offer, packed=run.packed, limit_bytes=limit)

    def held(self, batches: Sequence[Batch]) -> bool:
        """Whether a step, or a part of an evaluation, is done without the peer: all of it or nothing."""
        return self._outputs is not None and self._outputs.hold(batches)

    def order(self, micro_batches: int, *, gradients: bool) -> list[Action]:
        """gradients: whether they leave; to the bottom they come back only where it trains."""
        run = self._run
        return list(
            ORDERS[run.order](
                micro_batches,
                in_flight=run.in_flight,
                parties=len(self._lines),
                gradients=gradients,
                backward=gradients and run.offer.returns_input_gradient,
            )
        )

    def place(self, batch: Batch, i: int, of: int, *, phase: Phase, step: int) -> StepTensor:
        """The same for all compute parties."""
        return self._lines[0].tensors.place(batch, i, of, phase=phase, step=step)

    def begin(self, batch: Batch, place: StepTensor, *, recalled: bool = False) -> Passage:
        """Start a forward and send what it hands out at the first cut, unless its outputs are kept.

        Then the bottom, which stands still wherever outputs are kept, does not run either if it can be
        done without.
        """
        training, offer = place.phase == "train", self._run.offer
        inputs = {**batch.inputs, **batch.labels} if training else batch.seen
        passage = Passage(
            Flight(self._run.local, inputs=self._run.device.take_all(inputs)),
            self._lines,
            batch=batch,
            place=place,
            seed=offer.seed,
            gradients=training and offer.trains_trunk,
            device=self._run.device,
            outputs=self._outputs,
            recalled=recalled,
        )
        with walked_from(self._run.local, self._bottom) if recalled else nullcontext():
            passage.bottom()
        self.rows[place.phase] += 0 if recalled else self._lines[0].tensors.rows(batch, place)
        return passage
