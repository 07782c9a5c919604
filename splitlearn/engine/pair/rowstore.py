"""An encoder's rows by sample, where its adapters stand still: what came once is not asked for again.

In a file without a name, as everything that is kept between epochs. What finds no room is asked for anew.
"""

# B examples, S rows of each, D width, N rows

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from splitlearn.engine.payloads.kept import Kept
from splitlearn.roles import Kind
from splitlearn.translation import Source

__all__ = ["RowStore"]

# As Kept counts an entry's cost in main memory.
_ENTRY_BYTES = 512


class RowStore:
    """Rows of `width` numbers, up to `limit_bytes`; none at all with a limit of 0."""

    def __init__(self, folder: Path, *, width: int, limit_bytes: int) -> None:
        self._kept = Kept(folder, limit_bytes=limit_bytes)
        self._width, self._limit, self._used = width, limit_bytes, 0
        self._lengths: dict[tuple[str, int], int] = {}

    def has(self, phase: str, number: int) -> bool:
        return (phase, number) in self._lengths

    def filled(self, phase: str, samples: Mapping[str, int]) -> bool:
        """Whether all of a phase are here. samples: how many there are, by phase."""
        here = sum(1 for each, _ in self._lengths if each == phase)
        return bool(samples) and here == samples[phase]

    def full(self, samples: Mapping[str, int]) -> bool:
        """Whether all of all phases are."""
        return bool(samples) and len(self._lengths) == sum(samples.values())

    def keep(self, phase: str, numbers: Sequence[int], source: Source) -> bool:
        """Keep the rows of these samples, if all of them find room."""
        size = sum(4 * n * self._width + _ENTRY_BYTES for n in source.lengths)
        if self._used + size > self._limit:
            return False
        self._used += size
        for number, length, rows_SD in zip(numbers, source.lengths, source.rows_BSD, strict=True):
            self._kept.put(Kind.ACTIVATION, _name(phase, number), rows_SD[:length])
            self._lengths[phase, number] = length
        return True

    def source(self, phase: str, numbers: Sequence[int]) -> Source:
        """Kept samples as one batch, padded as if they had come in it."""
        lengths = tuple(self._lengths[phase, number] for number in numbers)
        rows_BSD = torch.zeros(len(lengths), max(lengths), self._width)
        for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
            found_SD = self._kept.get(
                Kind.ACTIVATION, _name(phase, number), rows=length, width=self._width
            )
            assert found_SD is not None, "what has a length was kept"
            rows_BSD[row, :length] = found_SD
        return Source(rows_BSD, lengths)


def _name(phase: str, number: int) -> bytes:
    return phase.encode() + number.to_bytes(8, "little")
