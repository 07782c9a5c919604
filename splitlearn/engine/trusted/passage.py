"""One micro-batch on its way through the cuts: forward to each compute party in turn, and back.

Between two remote stages the trusted party holds pieces of the graph. A piece begins where rows come
in and ends where rows go out; the gradient that comes back for its end becomes the one that goes back
from its beginning. Where no layer lies between two parties the piece is one tensor, and what came in
is passed on as it is. An encoder below a decoder ends a piece, too, though nobody stands there: gradients by
its output come from every layer of the decoder, are summed from the last one to the first, wherever they
are, as one model would, and then go back through it once. Does not decide what comes when: the schedule does.
"""

# B batch, T tokens, S tokens of an encoder below a decoder, D width at a cut

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from splitlearn.engine.state.device import CPU, Device
from splitlearn.engine.state.seeds import seeded
from splitlearn.engine.trusted.flight import Encoded, Flight
from splitlearn.engine.trusted.outputs import Outputs
from splitlearn.engine.trusted.through import Way
from splitlearn.roles import Kind
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor

__all__ = ["Passage"]


class Passage:
    """Call `bottom`, then `relay` to each party but the first, then `top`, each exactly once.

    In training that sends gradients `turn` follows once the loss has been through its backward, then
    `backward` from the last party to the first; to the first only where the bottom trains.
    """

    def __init__(
        self,
        flight: Flight,
        lines: Sequence[Way],
        *,
        batch: Batch,
        place: StepTensor,
        seed: int,
        gradients: bool,
        device: Device = CPU,
        outputs: Outputs | None = None,
        recalled: bool = False,
    ) -> None:
        """lines: the compute parties, in the order of their layers. gradients: whether they leave. device:
        of the flight's model; rows come from the CPU, and go there.

        outputs: where what comes back is kept; recalled: whether it is taken from there, and nothing sent.
        """
        self._flight, self._lines = flight, lines
        self._batch, self._place, self._seed = batch, place, seed
        self._gradients, self._device = gradients, device
        self._outputs, self._recalled = outputs, recalled
        # What went out to each party, with its graph, and what came in from each.
        self._left: list[Tensor] = []
        self._entered: list[Tensor] = []
        # The first party that was handed what an encoder left, too, if any was.
        self._crossed: int | None = None

    def bottom(self) -> None:
        """Forward to the first cut; send the activation."""
        with self._working("bottom"):
            h_BTD = self._flight.to_cut()
        self._leave(h_BTD)

    def relay(self, party: int) -> None:
        """Await what the party before gives; send it on to `party`."""
        h_BTD = self._enter(party - 1)
        with self._working(f"before party {party}"):
            next_BTD = self._flight.past_cut(h_BTD)
        self._leave(next_BTD)

    def top(self) -> ModelOutput:
        """Await what the last party gives; the model's output."""
        h_BTD = self._enter(len(self._lines) - 1)
        with self._working("top"):
            return self._flight.from_cut(h_BTD)

    def turn(self) -> None:
        """Send the gradient that the loss left at the last cut, where one leaves."""
        if self._gradients:
            self._give_back(len(self._lines) - 1)

    def backward(self, party: int) -> None:
        """Await the party's input gradient, go through the piece before it, send on what comes out."""
        line, encoded = self._lines[party], self._encoded(party)
        if encoded is None or not encoded.entered.requires_grad:
            g_BTD = line.tensors.receive(Kind.INPUT_GRADIENT, self._batch, self._place)
            torch.autograd.backward(self._left[party], self._device.take(g_BTD))
        else:
            sum_BSD, g_BTD = line.both.receive_both(Kind.INPUT_GRADIENT, self._batch, self._place)
            sums = [self._device.take(g_BTD), self._device.take(sum_BSD)]
            torch.autograd.backward([self._left[party], encoded.entered], sums)
            if party == self._crossed:
                torch.autograd.backward(encoded.left, encoded.entered.grad)
        if party:
            self._give_back(party - 1)

    def _enter(self, party: int) -> Tensor:
        h_BTD = self._device.take(self._output(party))
        self._entered.append(h_BTD.requires_grad_(self._gradients))
        return h_BTD

    def _output(self, party: int) -> Tensor:
        if self._recalled:
            assert self._outputs is not None
            return self._outputs.get(self._batch)
        h_BTD = self._lines[party].tensors.receive(Kind.OUTPUT, self._batch, self._place)
        if self._outputs is not None:
            self._outputs.put(self._batch, h_BTD)
        return h_BTD

    def _leave(self, h_BTD: Tensor) -> None:
        h_BTD = h_BTD.float()  # in whatever precision it was computed
        if not self._recalled:
            party, encoded = len(self._left), self._flight.memory
            if encoded is not None and self._crossed is None:
                self._crossed = party
            beside = None if encoded is None else encoded.entered
            self._send(party, Kind.ACTIVATION, h_BTD, beside=beside)
        self._left.append(h_BTD)

    def _give_back(self, party: int) -> None:
        g_BTD = self._entered[party].grad
        assert g_BTD is not None, "a gradient is sent before its backward was done"
        encoded, sum_BSD = self._encoded(party), None
        if encoded is not None:
            # Taken along, so that the peer's share is added to those of the layers above.
            sum_BSD, encoded.entered.grad = encoded.entered.grad, None
        self._send(party, Kind.GRADIENT, g_BTD, beside=sum_BSD)

    def _encoded(self, party: int) -> Encoded | None:
        """What an encoder left, where that party was handed it."""
        crossed = self._crossed is not None and party >= self._crossed
        return self._flight.memory if crossed else None

    def _send(self, party: int, kind: Kind, h_BTD: Tensor, *, beside: Tensor | None) -> None:
        line = self._lines[party]
        if beside is None:
            line.tensors.send(kind, h_BTD, self._batch, self._place)
        else:
            line.both.send_both(kind, beside, h_BTD, self._batch, self._place)

    @contextmanager
    def _working(self, stage: str) -> Iterator[None]:
        """Around a piece of the forward: a flight that stands still holds no setting of the thread's."""
        step, i = self._place.step, self._place.micro_batch
        with seeded(self._seed, step=step, micro_batch=i, stage=stage), self._device.working():
            yield
