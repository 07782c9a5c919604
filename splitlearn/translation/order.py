"""Which samples make a step's batch: follows from seed and step, so that a resumed run goes on alike."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

__all__ = ["Order"]

# Batches among which samples are sorted by length: padding falls by a third, and chance stays.
_POOL = 16


class Order:
    """Epochs over `lengths`, each in an order of its own, in batches of samples of about one length."""

    def __init__(self, lengths: Sequence[int], *, batch: int, seed: int) -> None:
        """lengths: of each sample, in any unit. Every sample comes once an epoch."""
        self._lengths = np.asarray(lengths)
        self._batch, self._seed = batch, seed
        self.per_epoch = -(-len(lengths) // batch)
        self._epoch = lru_cache(maxsize=2)(self._drawn)

    def __call__(self, step: int) -> tuple[int, ...]:
        """The numbers of the samples of a step."""
        epoch, at = divmod(step, self.per_epoch)
        return self._epoch(epoch)[at]

    def _drawn(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        draw = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        order = draw.permutation(len(self._lengths))
        pool = self._batch * _POOL
        batches = []
        for start in range(0, len(order), pool):
            pooled = order[start : start + pool]
            pooled = pooled[np.argsort(self._lengths[pooled], kind="stable")]
            batches += [
                tuple(pooled[at : at + self._batch].tolist())
                for at in range(0, len(pooled), self._batch)
            ]
        return tuple(batches[i] for i in draw.permutation(len(batches)))
