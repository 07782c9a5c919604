"""In which order a trusted party works through the micro-batches of one step.

Pure: a schedule is a list of actions, made before the step begins, so that two runs with the same
settings do the same sums in the same order however fast the link is. Chain: the trusted party is
the first and the last stage of one worker (U-shape), the compute party answers in order of arrival.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ORDERS", "Action", "Op", "fill_drain", "one_forward_one_backward"]


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
    return _actions(micro_batches, in_flight=in_flight, backward=backward, lag=micro_batches)


def one_forward_one_backward(
    micro_batches: int, *, in_flight: int, backward: bool
) -> Iterator[Action]:
    """As `fill_drain`, but a bottom's backward is done as soon as it never has to wait for it.

    So no more than 2 * in_flight + 1 graphs of the bottom live, however many micro-batches there are,
    and the trusted party computes while it would else wait for outputs. A gradient that leaves with
    activation i + in_flight is answered before that activation, whose output is awaited anyway.

    >>> [f"{a.op.value}{a.micro_batch}" for a in one_forward_one_backward(3, in_flight=1, backward=True)]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['bottom0', 'top0', 'bottom1', 'top1', 'bottom2', 'bottom_backward0', 'top2',
     'bottom_backward1', 'bottom_backward2']
    """
    return _actions(micro_batches, in_flight=in_flight, backward=backward, lag=in_flight)


ORDERS: Mapping[str, Callable[..., Iterator[Action]]] = {
    "fill-drain": fill_drain,
    "1f1b": one_forward_one_backward,
}


def _actions(micro_batches: int, *, in_flight: int, backward: bool, lag: int) -> Iterator[Action]:
    """lag: by how many tops a bottom's backward comes after its own."""
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; expected 1 or more")
    for i in range(min(in_flight, micro_batches)):
        yield Action(Op.BOTTOM, i)
    for i in range(micro_batches):
        yield Action(Op.TOP, i)
        if i + in_flight < micro_batches:
            yield Action(Op.BOTTOM, i + in_flight)
        if backward and i >= lag:
            yield Action(Op.BOTTOM_BACKWARD, i - lag)
    if backward:
        for i in range(max(0, micro_batches - lag), micro_batches):
            yield Action(Op.BOTTOM_BACKWARD, i)
