"""Reading a log record by record, whole or while it is being written. Never judges and never writes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from splitlearn.audit.log import SEGMENTS, read_lines
from splitlearn.audit.records import MAX_LINE_BYTES, Record, decode
from splitlearn.errors import AuditError

__all__ = ["follow_records", "read_records"]


def read_records(folder: Path) -> Iterator[tuple[int, Record]]:
    """Index and record of each whole line of the log in `folder`, in order, without keeping any.

    A last line without its newline is one that is being written, or was when its process ended: it is
    passed over. Raises AuditError where a file is missing or a line is no record.
    """
    for index, (line, whole) in enumerate(read_lines(folder)):
        if whole:
            yield index, _read(line, folder=folder, index=index)


def follow_records(folder: Path, *, wait: Callable[[], bool]) -> Iterator[tuple[int, Record]]:
    """Like `read_records`, and on: at the log's end `wait` is called, and False from it ends this.

    Goes from segment to segment as the log does. Raises AuditError as `read_records` does, and where
    a line grows beyond what a record can take.
    """
    for index, line in enumerate(_follow_lines(folder, wait=wait)):
        yield index, _read(line, folder=folder, index=index)


# A read of this many bytes takes a millisecond or less.
_READ_BYTES = 2**20


def _read(line: bytes, *, folder: Path, index: int) -> Record:
    try:
        return decode(line)
    except AuditError as error:
        raise AuditError(f"log {folder}, record {index}: {error}") from None


def _follow_lines(folder: Path, *, wait: Callable[[], bool]) -> Iterator[bytes]:
    number = 0
    while True:
        path, following = (folder / SEGMENTS / f"{at:06}.jsonl" for at in (number, number + 1))
        while not path.exists():
            if not wait():
                return
        try:
            with path.open("rb") as file:
                rest = b""
                while True:
                    # Looked at before the read: once the next segment is there, this one is whole.
                    last = not following.exists()
                    data = file.read(_READ_BYTES)
                    *lines, rest = (rest + data).split(b"\n")
                    yield from lines
                    if len(rest) > MAX_LINE_BYTES:
                        raise AuditError(
                            f"log {folder}: a line of {path.name} is longer than {MAX_LINE_BYTES} "
                            "bytes, so it is no record"
                        )
                    if data:
                        continue
                    if not last:
                        break
                    if os.fstat(file.fileno()).st_nlink == 0 or not wait():
                        return
        except OSError as error:
            raise AuditError(f"log {folder} cannot be read: {error.strerror}") from error
        number += 1
