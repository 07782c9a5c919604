"""How often one example can have shown in noisy gradients, counted in one pass and little memory.

The exact count of `splitlearn.policy.accounting.releases_of` needs every gradient that was sent; this
one needs one interval for each pass over the steps, and is never smaller. Computes, reads no file.
"""

import math
from collections.abc import Iterable

from splitlearn.policy.accounting import REPLACED, gaussian_epsilon

__all__ = ["DELTA", "MAX_PASSES", "Releases", "epsilon_of"]

# The job's own delta stands in no log; this is its default.
DELTA = 1e-5
# A run begins a pass for each epoch and each restart.
MAX_PASSES = 10_000


class Releases:
    """Gradients of one noise level in one run.

    A pass is a stretch in which steps go up and no micro-batch of a step comes twice, so each
    micro-batch is in it once at most. Passes of an epoch that overlap in a step add up.

    >>> releases = Releases()
    >>> for epoch, step, micro_batch in [(0, 0, 0), (0, 1, 0), (0, 1, 0), (1, 2, 0), (1, 3, 0)]:
    ...     releases.add(epoch=epoch, step=step, micro_batch=micro_batch)
    >>> releases.bound()
    3
    """

    def __init__(self) -> None:
        self._passes: list[tuple[int, int, int]] = []
        self._epoch = self._first = self._step = -1
        self._seen: set[int] = set()

    def add(self, *, epoch: int, step: int, micro_batch: int) -> None:
        """One gradient message was sent."""
        if epoch != self._epoch or step < self._step or self._again(step, micro_batch):
            self._end()
            self._epoch, self._first = epoch, step
            self._seen = set()
        if step != self._step:
            self._seen = set()
        self._step = step
        self._seen.add(micro_batch)

    def bound(self) -> int | None:
        """The most that one example was released, over all epochs; None if passes were too many."""
        self._end()
        if len(self._passes) > MAX_PASSES:
            return None
        epochs: dict[int, list[tuple[int, int]]] = {}
        for epoch, first, last in self._passes:
            epochs.setdefault(epoch, []).append((first, last))
        return sum(_overlap(passes) for passes in epochs.values())

    def _again(self, step: int, micro_batch: int) -> bool:
        return step == self._step and micro_batch in self._seen

    def _end(self) -> None:
        if self._epoch >= 0 and len(self._passes) <= MAX_PASSES:
            self._passes.append((self._epoch, self._first, self._step))
        self._epoch = -1


def epsilon_of(levels: Iterable[tuple[float, int]]) -> float:
    """Epsilon at DELTA of Gaussian noise of these multiples of the clipping norm, each so often.

    Composed exactly, for all labels of one example replaced.

    >>> round(epsilon_of([(6.0, 3)]), 2)
    2.34
    """
    mu = math.sqrt(sum(times * (REPLACED / noise) ** 2 for noise, times in levels))
    return gaussian_epsilon(DELTA, sigma=1.0, releases=1, sensitivity=mu)


def _overlap(passes: Iterable[tuple[int, int]]) -> int:
    """How many intervals, ends included, share a step at most."""
    ends = sorted(
        [(first, 0) for first, _ in passes] + [(last, 1) for _, last in passes],
    )
    most = now = 0
    for _, end in ends:
        now += -1 if end else 1
        most = max(most, now)
    return most
