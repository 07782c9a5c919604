"""A secret renaming of ids, shared by the generators and unknown to the discriminator.

It keeps a vocabulary's table from being read off at once, and no more: the most frequent id is still
the most frequent word, and whoever has text of the language finds the names again by counting.
Special tokens keep their ids. No protection against frequency analysis, and no encryption.
"""

import hashlib
import re
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitlearn.errors import ManifestError

__all__ = ["Permutation", "new_key", "read_key", "write_key"]


class Permutation:
    """Ids [0, size) renamed by a key of 32 bytes; those of `special` stay."""

    def __init__(self, key: bytes, *, size: int, special: frozenset[int]) -> None:
        if len(key) != _KEY_BYTES:
            raise ManifestError(
                f"a permutation key has {_KEY_BYTES} bytes, and this has {len(key)}"
            )
        self.size = size
        # Sorting by a keyed pseudo-random number each is a uniform shuffle; 64 bits make a tie,
        # which the stable sort would break by id, a matter of one in millions.
        stream = hashlib.shake_256(b"splitlearn permutation 1" + key).digest(8 * size)
        rank = np.frombuffer(stream, dtype="<u8")
        ordinary = np.array([i for i in range(size) if i not in special], dtype=np.int32)
        self._forth = np.arange(size, dtype=np.int32)
        self._forth[ordinary] = ordinary[np.argsort(rank[ordinary], kind="stable")]
        self._back = np.argsort(self._forth).astype(np.int32)

    def permute(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ids by their secret names, in the same shape."""
        return self._forth[ids]

    def inverse(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ids by their own names again."""
        return self._back[ids]


def new_key() -> bytes:
    """32 random bytes."""
    return secrets.token_bytes(_KEY_BYTES)


def write_key(key: bytes, path: Path) -> None:
    """A new key file for its owner's eyes only. ManifestError where one lies there already."""
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(key.hex() + "\n", encoding="ascii")
    except FileExistsError:
        raise ManifestError(f"{path} exists; a key is not written over another") from None
    except OSError as error:
        raise ManifestError(f"{path} cannot be written ({error.strerror})") from None


def read_key(path: Path) -> bytes:
    """The key in a file. ManifestError for anything but 64 hex digits, or a file others may read."""
    try:
        if path.stat().st_mode & 0o077:
            raise ManifestError(f"{path} can be read by others; run chmod 600 {path}")
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES).strip()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror})") from None
    if not re.fullmatch(rb"[0-9a-f]{64}", text):
        raise ManifestError(
            f"{path} is no permutation key: that is 64 hex digits; make one with "
            "splitlearn vocab key"
        )
    return bytes.fromhex(text.decode("ascii"))


_KEY_BYTES = 32
# Twice the key and room for an end of line; more is something else.
_FILE_BYTES = 128
