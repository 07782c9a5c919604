"""Sealed frames: the wire bytes of a few messages, kept beside the log so that they can be looked at.

    blobs/NAME.sealed   the frame under a key of its own; NAME is the SHA-256 of this file
    blobs/NAME.key      that key, wrapped under the run key (RFC 3394)
    blobs.key           the run key, in hex; give it to nobody who may not read every sealed frame

To destroy a frame is to destroy its key: the sealed bytes may have been copied, the key has not. On
a disk that writes elsewhere what is overwritten (any SSD), a thief of the disk may still find both
wrapped key and run key; hand out copies without `blobs.key`, and keep frames of canary batches only.
Never writes a frame in clear, never decides which frame is kept.
"""

import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from splitlearn.errors import AuditError
from splitlearn.identity import files
from splitlearn.wire.limits import MAX_FRAME_BYTES

__all__ = ["BLOBS", "RUN_KEY", "Blobs", "key_path", "parse_run_key", "sealed_path"]

BLOBS = "blobs"
RUN_KEY = "blobs.key"


class Blobs:
    """The sealed frames of one log folder."""

    def __init__(self, folder: Path, *, run_key: bytes | None) -> None:
        """Use `Blobs.open`."""
        self._folder = folder
        self._run_key = run_key

    @classmethod
    def open(cls, folder: Path, *, create: bool) -> "Blobs":
        """The sealed frames beside the log in `folder`. create: make folder and run key when needed.

        Raises AuditError where there are none and none may be made, or the run key is no key.
        """
        if not create and not (folder / BLOBS).is_dir():
            raise AuditError(f"no frames are kept in {folder / BLOBS}")
        blobs = cls(folder, run_key=None)
        if (folder / RUN_KEY).exists():
            blobs._run_key = parse_run_key(_read(folder / RUN_KEY, limit_bytes=1024))
        return blobs

    def keep(self, raw: bytes) -> str:
        """Seal the frame `raw` and write it to the disk; its name. Raises AuditError, disk full."""
        try:
            (self._folder / BLOBS).mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._run_key is None:
                self._run_key = self._make_run_key()
            key = ChaCha20Poly1305.generate_key()
            # A key seals one frame only, so its nonce need not differ from that of any other.
            sealed = ChaCha20Poly1305(key).encrypt(_NONCE, raw, _CONTEXT)
            name = hashlib.sha256(sealed).hexdigest()
            files.replace(key_path(self._folder, name), aes_key_wrap(self._run_key, key))
            files.replace(sealed_path(self._folder, name), sealed)
        except OSError as error:
            raise AuditError(
                f"a frame cannot be kept in {self._folder / BLOBS} ({error.strerror}); "
                "make room, or keep none"
            ) from error
        return name

    def read(self, name: str, *, run_key: bytes | None = None) -> bytes:
        """The frame called `name`. run_key: in place of the one in the folder.

        Raises AuditError: no such frame, its key was destroyed, another run key, or it was changed.
        """
        _check_name(name)
        run_key = run_key or self._run_key
        if run_key is None:
            raise AuditError(
                f"there is no {self._folder / RUN_KEY}; ask the log's owner for the run key"
            )
        if not sealed_path(self._folder, name).exists():
            raise AuditError(
                f"sealed frame {name[:16]}... is not here: it was destroyed, or this copy of the log "
                "came without its frames; splitlearn audit verify says which"
            )
        sealed = _read(sealed_path(self._folder, name), limit_bytes=MAX_FRAME_BYTES + _TAG_BYTES)
        if hashlib.sha256(sealed).hexdigest() != name:
            raise AuditError(f"sealed frame {name[:16]}... was changed")
        try:
            key = aes_key_unwrap(run_key, _read(key_path(self._folder, name), limit_bytes=1024))
            return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, _CONTEXT)
        except (InvalidUnwrap, InvalidTag, ValueError):
            raise AuditError(
                f"sealed frame {name[:16]}... does not open with this run key"
            ) from None

    def shred(self, name: str) -> None:
        """Destroy the key of the frame called `name`, and its sealed bytes too.

        Nothing is said where they are gone already: it may have been broken off in the middle.
        Raises AuditError where the disk does not do it.
        """
        _check_name(name)
        try:
            for path in (key_path(self._folder, name), sealed_path(self._folder, name)):
                _destroy(path)
        except OSError as error:
            raise AuditError(
                f"the frame {name[:16]}... cannot be destroyed: {error.strerror}"
            ) from error

    def _make_run_key(self) -> bytes:
        run_key = secrets.token_bytes(_KEY_BYTES)
        files.replace(self._folder / RUN_KEY, run_key.hex().encode() + b"\n")
        return run_key


def sealed_path(folder: Path, name: str) -> Path:
    """Where the sealed frame called `name` lies."""
    return folder / BLOBS / f"{name}.sealed"


def key_path(folder: Path, name: str) -> Path:
    """Where its wrapped key lies."""
    return folder / BLOBS / f"{name}.key"


def parse_run_key(text: bytes) -> bytes:
    """The run key from the contents of its file. Raises AuditError, which does not quote it."""
    if re.fullmatch(rb"[0-9a-f]{64}\n?", text) is None:
        raise AuditError("not a run key of sealed frames: expected 64 hexadecimal digits")
    return bytes.fromhex(text.decode())


_KEY_BYTES = 32
_TAG_BYTES = 16
_NONCE = bytes(12)
_CONTEXT = b"splitlearn frame 1"


def _check_name(name: str) -> None:
    """A name becomes part of a path, and may come from a log that somebody else wrote."""
    if re.fullmatch(r"[0-9a-f]{64}", name) is None:
        raise AuditError(f"{name[:80]!r} is not the name of a sealed frame")


def _read(path: Path, *, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise AuditError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise AuditError(f"{path} is longer than {limit_bytes} bytes: not a file of ours")
    return data


def _destroy(path: Path) -> None:
    with suppress(FileNotFoundError):
        with path.open("r+b") as file:
            file.write(secrets.token_bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        files.flush_folder(path.parent)
