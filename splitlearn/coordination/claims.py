"""One process at a time: a lock on a file that lasts as long as the process that holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splitlearn.errors import ManifestError
from splitlearn.identity import files

__all__ = ["claimed", "held"]


@contextmanager
def claimed(path: Path, *, otherwise: str) -> Iterator[None]:
    """Hold `path` while the block runs. Raises ManifestError(otherwise) where another holds it."""
    descriptor = _open(path)
    try:
        if not _take(descriptor):
            raise ManifestError(otherwise)
        yield
    finally:
        os.close(descriptor)


def held(path: Path) -> bool:
    """Whether a living process holds `path`."""
    if not path.exists():
        return False
    descriptor = _open(path)
    try:
        return not _take(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, files.PRIVATE)
    except OSError as error:
        raise ManifestError(f"{path} cannot be opened: {error.strerror}") from None


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
