"""How keys, certificates and records lie on disk: whole or not at all, and closed to other users.

Every write goes to a new file in the same folder, is flushed to the disk and renamed over the old
one. Folders are 0700, files 0600 unless they are public. Whoever changes a folder holds its lock.
Nothing here knows what the bytes mean, and no message quotes them.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splitlearn.errors import ManifestError

__all__ = [
    "MAX_FILE_BYTES",
    "PRIVATE",
    "PUBLIC",
    "append",
    "flush_folder",
    "locked",
    "make_folder",
    "mode_of",
    "read",
    "read_private",
    "replace",
    "write",
]

PRIVATE = 0o600
PUBLIC = 0o644
# A deny-list of 10,000 entries takes about 1 MiB; nothing else in these folders comes near it.
MAX_FILE_BYTES = 4 * 2**20


def make_folder(folder: Path) -> Path:
    """Create `folder` with mode 0700 where it does not exist. Raises ManifestError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ManifestError(f"folder {folder} cannot be created: {error.strerror}") from None
    return folder


def write(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Replace `path` by `data` in one step. Raises ManifestError where the disk says no."""
    try:
        replace(path, data, mode=mode)
    except OSError as error:
        raise ManifestError(f"{path} cannot be written: {error.strerror}") from None


def replace(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """As `write`, and raises OSError itself: for those whose remedy is another."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        flush_folder(path.parent)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def append(path: Path, data: bytes) -> None:
    """Add `data` to the end of `path`, flushed to the disk. Raises ManifestError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags, PRIVATE), "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ManifestError(f"{path} cannot be written: {error.strerror}") from None


def read(path: Path, *, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of `path`. Raises ManifestError where it is missing, closed or too long."""
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise ManifestError(f"{path} is longer than {limit_bytes} bytes: not a file of ours")
    return data


def read_private(path: Path) -> bytes:
    """Return the bytes of a key file, or raise ManifestError where other users may read it."""
    mode = mode_of(path)
    if mode & 0o077:
        raise ManifestError(
            f"{path} has mode {mode:04o}, open to other users of this machine; expected 0600: "
            f"run chmod 600 {path}"
        )
    return read(path)


def mode_of(path: Path) -> int:
    """Permission bits of `path`. Raises ManifestError where it is missing."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, against threads and processes alike, while the block runs."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
    except OSError as error:
        raise ManifestError(f"folder {folder} cannot be locked: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Have the disk know the names in `folder`. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
