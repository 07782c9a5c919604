"""A process that Flower started ends with the one that started it: nobody is left who would stop it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ends_with_its_parent"]

# Seconds between two looks at who our parent is.
_LOOK_S = 1.0
# Seconds that the work under way has for its last words, as after a Ctrl-C.
_PARTING_S = 20.0


@contextmanager
def ends_with_its_parent(*, look_s: float = _LOOK_S) -> Iterator[None]:
    """While the block runs, have this process interrupted, and later killed, once its parent is gone."""
    over, parent = threading.Event(), os.getppid()

    def watch() -> None:
        while not over.wait(look_s):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGINT)
                if not over.wait(_PARTING_S):
                    os.kill(os.getpid(), signal.SIGKILL)
                return

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
