"""In which order a trusted party works through the micro-batches of one step.

Pure: a schedule is a list of actions, made before the step begins, so that two runs with the same
settings do the same sums in the same order however fast the link is. Chain: the trusted party is
the first and the last stage of one worker (U-shape), the compute party answers in order of arrival.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Action", "Op", "fill_drain"]


class Op(StrEnum):
    """What to do with a micro-batch."""

    BOTTOM = "bottom"  # forward to the cut, send the activation
    TOP = "top"  # await the trunk's output, forward to the loss; in training send the gradient
    BOTTOM_BACKWARD = "bottom_backward"  # await the input gradient, backward through the bottom


@dataclass(frozen=True)
class Action:
    """One piece of work."""

    op: Op
    micro_batch: int


def fill_drain(micro_batches: int, *, in_flight: int, backward: bool) -> Iterator[Action]:
    """Fill the link with up to `in_flight` activations, then one more for each that came back.

    backward: whether gradients come back for the bottom. Gradients are accumulated in micro-batch
    order, as a single-process loop over the same micro-batches does.

    >>> [f"{a.op.value}{a.micro_batch}" for a in fill_drain(3, in_flight=2, backward=False)]
    ['bottom0', 'bottom1', 'top0', 'bottom2', 'top1', 'top2']
    """
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; expected 1 or more")
    for i in range(min(in_flight, micro_batches)):
        yield Action(Op.BOTTOM, i)
    for i in range(micro_batches):
        yield Action(Op.TOP, i)
        if i + in_flight < micro_batches:
            yield Action(Op.BOTTOM, i + in_flight)
    if backward:
        for i in range(micro_batches):
            yield Action(Op.BOTTOM_BACKWARD, i)
