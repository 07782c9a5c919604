"""Rows that one conversation keeps between epochs, in a file without a name, and who is kept.

The file lies in the run's folder, is readable by its owner only and loses its name before its first byte:
whatever ends the process ends it. What does not fit is not kept, rather than dropping what is: every
sample comes once an epoch, so what was used least recently is what comes next.

D width
"""

import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from splitlearn.codecs import NAME_BYTES, NOBODY
from splitlearn.errors import AuditError, SessionError
from splitlearn.roles import Kind

__all__ = ["DEFAULT_BYTES", "Kept", "Namer"]

DEFAULT_BYTES = 1024 * 2**20
# What an entry takes in main memory, a little over what Python needs: small rows are not free.
_ENTRY_BYTES = 512


class Kept:
    """The rows of one party, by kind and pseudonym, up to `limit_bytes`. Used from one thread."""

    def __init__(self, folder: Path, *, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._folder, self.limit_bytes = folder, limit_bytes
        self._places: dict[tuple[Kind, bytes], _Place] = {}
        self._used = self._end = 0
        self._file: int | None = None
        self._close: weakref.finalize[..., Kept] | None = None

    def of(self, kind: Kind) -> "_View":
        """The rows of one kind of message, as codecs ask for them."""
        return _View(self, kind)

    def clear(self) -> None:
        """Forget everything, and give back the disk."""
        self._places.clear()
        self._used = self._end = 0
        self._file = None
        if self._close is not None:
            self._close()

    def get(self, kind: Kind, sample: bytes, *, rows: int, width: int) -> Tensor | None:
        """Float32 (rows, width); None where nothing of that shape is kept."""
        place = self._places.get((kind, sample))
        if place is None or (place.rows, place.width) != (rows, width):
            return None
        with self._telling():
            assert self._file is not None, "there are places in a file only"
            data = bytearray(os.pread(self._file, place.size, place.at))
        if len(data) != place.size:
            raise AuditError(f"a file of kept rows in {self._folder} is shorter than was written")
        return torch.frombuffer(data, dtype=torch.float32).view(rows, width)

    def put(self, kind: Kind, sample: bytes, x_ND: Tensor) -> None:
        """Keep a sample's rows in place of those before. SessionError over the limit."""
        rows, width = x_ND.shape
        if not x_ND.numel():
            return
        place = self._places.get((kind, sample))
        if place is None or (place.rows, place.width) != (rows, width):
            place = _Place(self._end, rows, width)
            if self._used + place.size + _ENTRY_BYTES > self.limit_bytes:
                raise SessionError(
                    f"the run keeps more than {self.limit_bytes // 2**20} MiB of rows between epochs here; "
                    "lower codec.cache_mb in job.toml or raise run.cache_mb in compute.toml"
                )
            self._used += place.size + _ENTRY_BYTES
            self._end += place.size
            self._places[kind, sample] = place
        data = memoryview(x_ND.detach().contiguous().numpy().data).cast("B")
        with self._telling():
            file, at = self._opened(), place.at
            while data:
                written = os.pwrite(file, data, at)
                data, at = data[written:], at + written

    def _opened(self) -> int:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file, name = tempfile.mkstemp(prefix="kept-", dir=self._folder)  # mode 0600
            Path(name).unlink()
            self._close = weakref.finalize(self, os.close, self._file)
        return self._file

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AuditError(
                f"rows cannot be kept in {self._folder}: {error.strerror}; free space there, or take "
                "codecs without delta-"
            ) from error


@dataclass(frozen=True)
class _Place:
    at: int
    rows: int
    width: int

    @property
    def size(self) -> int:
        return 4 * self.rows * self.width


@dataclass(frozen=True)
class _View:
    kept: Kept
    kind: Kind

    def get(self, sample: bytes, *, rows: int, width: int) -> Tensor | None:
        return self.kept.get(self.kind, sample, rows=rows, width=width)

    def put(self, sample: bytes, x_ND: Tensor) -> None:
        self.kept.put(self.kind, sample, x_ND)


@dataclass
class Namer:
    """Which pseudonym a sample has, and which samples are kept: the trusted party says, for both sides.

    secret: of this run, never sent; without it a pseudonym does not tell the sample's number. widths:
    columns of each kind that is kept. limit_bytes: for all rows of one party.
    """

    secret: bytes = field(repr=False)
    widths: Sequence[int]
    limit_bytes: int = DEFAULT_BYTES
    _spans: dict[int, int] = field(default_factory=dict, repr=False)
    _used: int = 0

    def clear(self) -> None:
        """Begin with nobody."""
        self._spans.clear()
        self._used = 0

    def name(self, samples: Sequence[int], *, spans: Sequence[int]) -> tuple[bytes, ...]:
        """Pseudonyms of samples that have so many rows; of nobody for those that find no room.

        samples: none where they have no numbers; then all are nobody.
        """
        if not samples:
            return (NOBODY,) * len(spans)
        return tuple(map(self._name, samples, spans))

    def _name(self, sample: int, rows: int) -> bytes:
        if sample not in self._spans:
            size = sum(4 * rows * width + _ENTRY_BYTES for width in self.widths)
            if self._used + size > self.limit_bytes:
                return NOBODY
            self._used += size
            self._spans[sample] = rows
        if self._spans[sample] != rows:  # padded to another length than when it found room
            return NOBODY
        return hashlib.blake2b(
            sample.to_bytes(8, "little"),
            key=self.secret,
            digest_size=NAME_BYTES,
            person=b"sample",
        ).digest()
