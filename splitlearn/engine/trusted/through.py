"""What a trusted party exchanges rows with, for micro-batches on their way: each party, or a whole chain.

Where compute parties of a chain send to one another, the trusted party sees only what goes in at one end and
what comes out at the other, as of one party. It watches all of them meanwhile: the one that it waits for may
itself wait for one that is gone.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from splitlearn.engine.payloads.coders import Phase
from splitlearn.engine.payloads.crossing import CrossExchange
from splitlearn.engine.payloads.exchange import Exchange
from splitlearn.engine.trusted.line import Line
from splitlearn.roles import Kind
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor

__all__ = ["Tensors", "Through", "Way", "ways_of"]


class Tensors(Protocol):
    """As `Exchange` has them."""

    def place(self, batch: Batch, i: int, of: int, *, phase: Phase, step: int) -> StepTensor: ...

    def send(self, kind: Kind, h_BTD: Tensor, batch: Batch, place: StepTensor) -> None: ...

    def receive(self, kind: Kind, batch: Batch, place: StepTensor) -> Tensor: ...

    def rows(self, batch: Batch, place: StepTensor) -> int: ...


class Way(Protocol):
    """A party, or what looks like one."""

    @property
    def tensors(self) -> Tensors: ...

    @property
    def both(self) -> CrossExchange: ...


class Through:
    """A direct chain as one party. Its own tensors, too."""

    def __init__(self, lines: Sequence[Line]) -> None:
        """lines: in the order of their layers. From now on each wait for one of them looks at the others."""
        self._first, self._last = lines[0], lines[-1]
        for line in lines:
            line.beside = [other for other in lines if other is not line]

    @property
    def tensors(self) -> "Through":
        """What goes in at the first party and comes out at the last, and gradients the other way."""
        return self

    @property
    def both(self) -> CrossExchange:
        """A decoder's layers are in no direct chain: its encoder's output would go over a hop, too."""
        raise AssertionError("such a job is refused before anything is offered")

    def rows(self, batch: Batch, place: StepTensor) -> int:
        """See `Exchange`."""
        return self._first.tensors.rows(batch, place)

    def place(self, batch: Batch, i: int, of: int, *, phase: Phase, step: int) -> StepTensor:
        """See `Exchange`."""
        return self._first.tensors.place(batch, i, of, phase=phase, step=step)

    def send(self, kind: Kind, h_BTD: Tensor, batch: Batch, place: StepTensor) -> None:
        """See `Exchange`."""
        self._at(kind).send(kind, h_BTD, batch, place)

    def receive(self, kind: Kind, batch: Batch, place: StepTensor) -> Tensor:
        """See `Exchange`."""
        return self._at(kind).receive(kind, batch, place)

    def _at(self, kind: Kind) -> Exchange:
        return (self._last if kind in _LAST else self._first).tensors


# What is exchanged with the party that has the last layers.
_LAST = frozenset({Kind.OUTPUT, Kind.GRADIENT})


def ways_of(lines: Sequence[Line]) -> Sequence[Way]:
    """Each party that rows are exchanged with, as a schedule tells them apart."""
    return [Through(lines)] if lines[0].hops is not None else lines
