"""A party's identity as its folder holds it now: a renewal or a longer deny-list counts at once.

Files are looked at when somebody asks, and read again only when they have changed.
"""

import ssl
import threading
from pathlib import Path

from splitlearn.errors import SplitLearnError
from splitlearn.identity import DenyList, Identity
from splitlearn.identity.denied import DENIED_FILE
from splitlearn.identity.party import CERTIFICATE_FILE, KEY_FILE

__all__ = ["FreshIdentity"]


class FreshIdentity:
    """Identity and deny-list of `folder`, kept as new as its files. Raises as Identity.load does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._marks = self._look()
        self._identity = Identity.load(folder)
        self._denied = self._identity.denied
        self._contexts: list[ssl.SSLContext] = []

    def presented_by(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Have `context` present our certificate, and every later one from when it is noticed."""
        with self._lock:
            self._present(context)
            self._contexts.append(context)
        return context

    def now(self) -> tuple[Identity, DenyList]:
        """Both as the folder holds them; as they were, where a writer is half-way through."""
        with self._lock:
            marks = self._look()
            if marks != self._marks:
                try:
                    identity = Identity.load(self.folder)
                    denied = identity.denied
                    for context in self._contexts:
                        self._present(context)
                except (SplitLearnError, ssl.SSLError, OSError):
                    return self._identity, self._denied
                self._marks, self._identity, self._denied = marks, identity, denied
            return self._identity, self._denied

    def _look(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_mark(self.folder / name) for name in (CERTIFICATE_FILE, DENIED_FILE))

    def _present(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)


def _mark(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced: its number on the disk, and its time."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
