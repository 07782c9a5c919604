"""What a frozen trunk gave back, kept on disk between epochs, so that nothing is asked for twice.

One file in the run's folder, readable by its owner only: rows of whole examples, each under a digest of
the example's ids, keyed by one of everything else that decides them (model, cut, codecs, job). It holds
no text, and survives a restart: what was cut off by a crash, or is damaged, counts as not kept. What
finds no room is not kept, rather than dropping what is: every example comes once an epoch.
"""

# B batch, T padded length, N rows of one example, D columns that come back

import hashlib
import os
import struct
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from splitlearn.errors import AuditError
from splitlearn.split.rows import pack, unpack
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Offer

__all__ = ["Outputs"]

_NAME = "outputs.bin"
_MAGIC = b"SPLO\x01"
_KEY_BYTES, _SUM_BYTES = 32, 16
# Key of the example, its rows, their columns, checksum of the float32 bytes that follow.
_RECORD = struct.Struct(f"<{_KEY_BYTES}sII{_SUM_BYTES}s")


class Outputs:
    """The outputs of one run, in `folder`. packed: as rows travel. Used from one thread."""

    def __init__(self, folder: Path, offer: Offer, *, packed: bool, limit_bytes: int) -> None:
        self._path, self._packed, self._limit = folder / _NAME, packed, limit_bytes
        # Purpose, conversation, salt and checkpoints are of no account.
        decides = "/".join((offer.job, offer.layers, offer.bottlenecks, offer.bases, offer.mode))
        self._context = hashlib.blake2b(decides.encode(), digest_size=_KEY_BYTES).digest()
        self._places: dict[bytes, tuple[int, int, int, bytes]] = {}
        self._end = 0
        self._file: int | None = None

    def hold(self, batches: Iterable[Batch]) -> bool:
        """Whether every example of these is kept whole."""
        with self._telling():
            return all(
                self._rows(key) is not None for batch in batches for key in self._keys(batch)
            )

    def get(self, batch: Batch) -> Tensor:
        """The padded output for a batch that is held, (B, T, D), in fresh memory."""
        with self._telling():
            rows = [self._rows(key) for key in self._keys(batch)]
        assert all(found is not None for found in rows), "asked for outputs that are not kept"
        whole = torch.cat([found for found in rows if found is not None])
        width = batch.inputs["input_ids"].shape[1]
        return unpack(whole, lengths=batch.lengths, width=width, packed=self._packed)

    def put(self, batch: Batch, o_BTD: Tensor) -> None:
        """Keep what came back for a batch, but for examples that are kept or find no room."""
        x_ND = pack(o_BTD.detach(), lengths=batch.lengths, packed=self._packed)
        each = torch.split(x_ND, self._spans(batch))
        with self._telling():
            for key, rows in zip(self._keys(batch), each, strict=True):
                if key not in self._places:
                    self._write(key, rows)

    def _keys(self, batch: Batch) -> list[bytes]:
        """A digest of each example's ids and, where padding travels, of its padded length."""
        made = []
        for i, length in enumerate(batch.lengths):
            digest = hashlib.blake2b(key=self._context, digest_size=_KEY_BYTES)
            for name, tensor in sorted(batch.inputs.items()):
                row = tensor[i] if not self._packed else tensor[i, :length]
                digest.update(f"{name}\0{len(row)}\0{row.dtype}\0".encode())
                digest.update(row.contiguous().numpy().tobytes())
            made.append(digest.digest())
        return made

    def _spans(self, batch: Batch) -> list[int]:
        width = batch.inputs["input_ids"].shape[1]
        return list(batch.lengths) if self._packed else [width] * len(batch.lengths)

    def _rows(self, key: bytes) -> Tensor | None:
        file = self._opened()
        place = self._places.get(key)
        if place is None:
            return None
        at, rows, width, checksum = place
        data = bytearray(os.pread(file, 4 * rows * width, at))
        if len(data) != 4 * rows * width or _checksum(data) != checksum:
            del self._places[key]
            return None
        return torch.frombuffer(data, dtype=torch.float32).view(rows, width)

    def _write(self, key: bytes, x_ND: Tensor) -> None:
        file = self._opened()
        rows, width = x_ND.shape
        data = x_ND.contiguous().float().numpy().tobytes()
        if self._end + _RECORD.size + len(data) > self._limit:
            return
        checksum = _checksum(data)
        os.pwrite(file, _RECORD.pack(key, rows, width, checksum) + data, self._end)
        self._places[key] = (self._end + _RECORD.size, rows, width, checksum)
        self._end += _RECORD.size + len(data)

    def _opened(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            weakref.finalize(self, os.close, self._file)
            self._index(self._file)
        return self._file

    def _index(self, file: int) -> None:
        """Find what an earlier process left, up to the first record that is not whole."""
        head, size = _MAGIC + self._context, os.fstat(file).st_size
        self._end = len(head)
        if os.pread(file, len(head), 0) != head:  # new, or another job's
            os.ftruncate(file, 0)
            os.pwrite(file, head, 0)
            return
        while self._end + _RECORD.size <= size:
            record = os.pread(file, _RECORD.size, self._end)
            key, rows, width, checksum = _RECORD.unpack(record)
            begin = self._end + _RECORD.size
            if begin + 4 * rows * width > size:
                return
            self._places[key] = (begin, rows, width, checksum)
            self._end = begin + 4 * rows * width

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AuditError(
                f"outputs cannot be kept in {self._path}: {error.strerror}; free space there, or take "
                "cut.cache = false"
            ) from error


def _checksum(data: bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM_BYTES).digest()
