"""Closed forms for the time of a step in a chain of stages, one worker each.

p stages, m micro-batches, forward_s and backward_s a micro-batch and stage, transfer_s one message one
way. They leave out what `simulate` has: two stages of one worker, windows, coders, unequal stages.
"""

import math

__all__ = [
    "best_blocking",
    "best_compute_bound",
    "best_link_bound",
    "blocking_bubble",
    "blocking_s",
    "bubble",
    "overlapped_s",
]


def bubble(stages: int, micro_batches: int) -> float:
    """The share of time that a stage stands still where transfers cost nothing (GPipe, 1811.06965).

    >>> bubble(2, 3)
    0.25
    """
    return (stages - 1) / (micro_batches + stages - 1)


def blocking_s(stages: int, micro_batches: int, *, compute_s: float, transfer_s: float) -> float:
    """A step whose sends block: a stage computes nothing while it sends or receives.

    compute_s: forward and backward of a micro-batch in one stage.
    """
    p, m = stages, micro_batches
    if p < 2:
        return m * compute_s
    # With two or three stages each transfer holds up the whole chain.
    transfers = 2 * (p - 1) * m if p <= 3 else 2 * (2 * m + p - 3)
    return (m + p - 1) * compute_s + transfers * transfer_s


def blocking_bubble(
    stages: int, micro_batches: int, *, compute_s: float, transfer_s: float
) -> float:
    """The share of that step in which a stage does not compute."""
    whole_s = blocking_s(stages, micro_batches, compute_s=compute_s, transfer_s=transfer_s)
    return 1 - micro_batches * compute_s / whole_s


def overlapped_s(
    stages: int, micro_batches: int, *, forward_s: float, backward_s: float, transfer_s: float
) -> float:
    """A step whose sends do not block, over links that carry both ways at once."""
    fill_s = stages * (forward_s + backward_s) + 2 * (stages - 1) * transfer_s
    slowest_s = max(forward_s, transfer_s) + max(backward_s, transfer_s)
    return fill_s + (micro_batches - 1) * slowest_s


# The best number of micro-batches of a fixed batch. batch_s: compute of the whole batch in one stage,
# so that a micro-batch takes batch_s / m + overhead_s; link_s: one way of the whole batch on the wire,
# so that a message takes delay_s + link_s / m.


def best_blocking(stages: int, *, batch_s: float, overhead_s: float, delay_s: float) -> float:
    """Where sends block.

    >>> best_blocking(2, batch_s=0.8, overhead_s=0.0, delay_s=0.1)
    2.0
    """
    each_s = overhead_s + 2 * (stages - 1) * delay_s
    return math.sqrt((stages - 1) * batch_s / each_s) if each_s else math.inf


def best_link_bound(stages: int, *, batch_s: float, link_s: float, delay_s: float) -> float:
    """Where sends overlap and the link is slower than every stage; delay_s: what a message costs the
    wire beside its bytes."""
    fill_s = stages * batch_s + 2 * (stages - 2) * link_s
    return math.sqrt(fill_s / (2 * delay_s)) if delay_s else math.inf


def best_compute_bound(stages: int, *, batch_s: float, link_s: float, overhead_s: float) -> float:
    """Where sends overlap and a stage is slower than the link."""
    fill_s = (stages - 1) * (batch_s + 2 * link_s)
    return math.sqrt(fill_s / overhead_s) if overhead_s else math.inf
