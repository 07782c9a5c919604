"""What changed in a sample's rows since the last time, written coarsely: AQ-SGD (arXiv 2206.01299).

Both parties keep, by a sample's pseudonym, the rows as they were decoded last time. What travels is the
difference; the first time it is the rows themselves, in int8. Both sides do the same sums value by value,
so what they keep is the same to the bit on any machine. Never decides who is named or what is kept.

N rows, D width, B samples
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from splitlearn.codecs.base import Codec, Slot, bounded, check
from splitlearn.codecs.quantise import Int8
from splitlearn.errors import WireError
from splitlearn.manifest.chains import SAMPLES
from splitlearn.wire.tensors import Part

__all__ = ["NAME_BYTES", "NOBODY", "About", "Delta", "Memory"]

NAME_BYTES = 8
# Stands for a sample that is not to be kept.
NOBODY = bytes(NAME_BYTES)


class Memory(Protocol):
    """The rows that one party has of one kind of message, by the sample's pseudonym."""

    def get(self, sample: bytes, *, rows: int, width: int) -> Tensor | None: ...

    def put(self, sample: bytes, x_ND: Tensor) -> None: ...


class Delta:
    """`delta-int4`: differences by `then`. By itself it remembers nothing: every row is a first one.

    wrap: the lossless stage that follows.
    """

    def __init__(
        self, name: str, *, then: Codec, wrap: Callable[[Codec], Codec] | None = None
    ) -> None:
        self._plain, self._then, self._wrap = name, then, wrap
        self.name = self.coder(None).name

    def staged(self, wrap: Callable[[Codec], Codec]) -> "Delta":
        """The same with a lossless stage after it."""
        return Delta(self._plain, then=self._then, wrap=wrap)

    def about(
        self,
        memory: Memory,
        *,
        samples: tuple[bytes, ...] | None,
        spans: tuple[int, ...],
        named: bool,
    ) -> "About":
        """The codec of one message. samples: pseudonym of each; None if the message tells.

        spans: rows of each sample. named: the message carries the pseudonyms.
        """
        return About(self, memory, samples=samples, spans=spans, named=named)

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        return self.coder(None).encode(_clamped(x_ND.detach().to(torch.float32)))

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        return _clamped(self.coder(None).decode(parts, rows=rows, width=width))

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        return self.coder(None).layout(rows=rows, width=width)

    def coder(self, known_N: Tensor | None) -> Codec:
        """How rows are written of which these have been seen before; none where it is None."""
        codec = _Halves(self._plain, self._then, known_N)
        return codec if self._wrap is None else self._wrap(codec)


class About:
    """The codec of one message, and what it changes in a memory once `keep` is called.

    Until then neither encoding nor decoding changes anything.
    """

    def __init__(
        self,
        delta: Delta,
        memory: Memory,
        *,
        samples: tuple[bytes, ...] | None,
        spans: tuple[int, ...],
        named: bool,
    ) -> None:
        assert samples is None or len(samples) == len(spans)
        assert named or samples is not None
        self.name = delta.name
        # Pseudonyms, as soon as they are known.
        self.samples = samples
        self._delta, self._memory, self._spans, self._named = delta, memory, spans, named
        self._base: tuple[Tensor, Tensor] | None = None
        self._decoded: Tensor | None = None

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        assert self.samples is not None, "who encodes names the samples"
        base_ND, known_N = self._kept(x_ND.shape[1])
        change_ND = _clamped(_clamped(x_ND.detach().to(torch.float32)) - base_ND)
        parts = self._delta.coder(known_N).encode(change_ND)
        if not self._named:
            return parts
        shape = (len(self.samples), NAME_BYTES)
        return (Part(SAMPLES, "U8", shape, b"".join(self.samples)), *parts)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        if rows != sum(self._spans):
            raise WireError(f"a message of {rows} rows is of samples of {sum(self._spans)}")
        if self._named:
            check(parts[:1], self._names())
            data = bytes(parts[0].data)
            found = tuple(data[i : i + NAME_BYTES] for i in range(0, len(data), NAME_BYTES))
            if self.samples not in {None, found}:
                raise WireError("a message names other samples than those it is made from")
            self.samples, parts = found, parts[1:]
        base_ND, known_N = self._kept(width)
        change_ND = self._delta.coder(known_N).decode(parts, rows=rows, width=width)
        self._decoded = _clamped(base_ND + change_ND)
        return self._decoded

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        names = self._names() if self._named else ()
        return (*names, *self._delta.coder(self._kept(width)[1]).layout(rows=rows, width=width))

    def keep(self) -> tuple[bytes, ...]:
        """Remember the rows as they were decoded; the samples' pseudonyms."""
        assert self.samples is not None, "a message is decoded before it is kept"
        assert self._decoded is not None, "a message is decoded before it is kept"
        pieces = torch.split(self._decoded, list(self._spans))
        for sample, x_ND in zip(self.samples, pieces, strict=True):
            if sample != NOBODY:
                self._memory.put(sample, x_ND)
        return self.samples

    def _names(self) -> tuple[Slot, ...]:
        return (Slot(SAMPLES, "U8", (len(self._spans), NAME_BYTES)),)

    def _kept(self, width: int) -> tuple[Tensor, Tensor]:
        """What both parties have of each row, zero where nothing, and of which rows it is."""
        if self._base is None:
            assert self.samples is not None, "samples are known before their rows are"
            base_ND = torch.zeros(sum(self._spans), width)
            known_N = torch.zeros(len(base_ND), dtype=torch.bool)
            first = 0
            for sample, rows in zip(self.samples, self._spans, strict=True):
                kept_ND = None
                if sample != NOBODY:
                    kept_ND = self._memory.get(sample, rows=rows, width=width)
                if kept_ND is not None:
                    base_ND[first : first + rows], known_N[first : first + rows] = kept_ND, True
                first += rows
            self._base = base_ND, known_N
        return self._base


class _Halves:
    """Rows that were seen before by one codec, others by int8. known_N: which were; None for none."""

    def __init__(self, name: str, then: Codec, known_N: Tensor | None) -> None:
        self.name = name
        self._first, self._then, self._known_N = Int8(), then, known_N

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        known_N = self._of(len(x_ND))
        return (
            *_named(self._first.encode(x_ND[~known_N]), "new"),
            *_named(self._then.encode(x_ND[known_N]), "change"),
        )

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        known_N = self._of(rows)
        cut = len(self._first.layout(rows=rows, width=width))
        known = int(known_N.sum())
        x_ND = torch.empty(rows, width)
        x_ND[~known_N] = self._first.decode(
            _plain(parts[:cut], "new"), rows=rows - known, width=width
        )
        x_ND[known_N] = self._then.decode(_plain(parts[cut:], "change"), rows=known, width=width)
        return x_ND

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        known = int(self._of(rows).sum())
        return tuple(
            slot._replace(name=before + slot.name)
            for before, codec, count in (
                ("new", self._first, rows - known),
                ("change", self._then, known),
            )
            for slot in codec.layout(rows=count, width=width)
        )

    def _of(self, rows: int) -> Tensor:
        if self._known_N is None:
            return torch.zeros(rows, dtype=torch.bool)
        return self._known_N


# Far over any hidden state, far enough below float32's largest number that sums of two stay finite.
_MOST = 2.0**120


def _clamped(x_ND: Tensor) -> Tensor:
    return x_ND.clamp(-_MOST, _MOST) if x_ND.numel() else x_ND


def _named(parts: Sequence[Part], before: str) -> tuple[Part, ...]:
    return tuple(replace(part, name=before + part.name) for part in parts)


def _plain(parts: Sequence[Part], before: str) -> tuple[Part, ...]:
    return tuple(replace(part, name=part.name.removeprefix(before)) for part in parts)
