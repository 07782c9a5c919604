"""Sums over any number of steps in a bounded number of bins, in one pass and bounded memory.

Knows nothing of what it adds up.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Bins"]

Key = TypeVar("Key", bound=Hashable)


class Bins(Generic[Key]):
    """Amounts by key and position, at most `limit` bins wide: when they run out, their width doubles.

    >>> bins = Bins[str](limit=4)
    >>> for step in range(6):
    ...     bins.add("out", at=step, amount=10)
    >>> bins.width, bins.row("out")
    (2, (20, 20, 20))
    """

    def __init__(self, *, limit: int) -> None:
        self.width = 1
        self.last = 0
        self._limit = limit
        self._low = 0
        self._high = -1
        self._rows: dict[Key, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return self._high >= self._low

    def add(self, key: Key, *, at: int, amount: int) -> None:
        """Add `amount` at position `at`, zero or more, in any order."""
        index = at // self.width
        if self:
            self._low, self._high = min(self._low, index), max(self._high, index)
        else:
            self._low = self._high = index
        self.last = max(self.last, at)
        row = self._rows.setdefault(key, {})
        row[index] = row.get(index, 0) + amount
        while self._high - self._low >= self._limit:
            self._double()

    @property
    def first(self) -> int:
        """Position of the first bin's left edge."""
        return self._low * self.width

    @property
    def keys(self) -> tuple[Key, ...]:
        """What was added, in the order of its first appearance."""
        return tuple(self._rows)

    def row(self, key: Key) -> tuple[int, ...]:
        """The sums of `key`, one a bin, all rows equally long."""
        return tuple(self._rows[key].get(index, 0) for index in range(self._low, self._high + 1))

    def _double(self) -> None:
        self.width *= 2
        self._low //= 2
        self._high //= 2
        for key, row in self._rows.items():
            merged: dict[int, int] = {}
            for index, amount in row.items():
                merged[index // 2] = merged.get(index // 2, 0) + amount
            self._rows[key] = merged
