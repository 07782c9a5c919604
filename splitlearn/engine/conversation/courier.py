"""One thread that says what an engine's thread need not wait for: encoding, judging, logging, sending.

In the order in which it was asked for, so that sequence numbers and the log are as if nobody had been
in between. What goes wrong there is raised at the engine's next word, and nothing more is said.
"""

import contextlib
import queue
import threading
from collections.abc import Callable

__all__ = ["Courier"]

# Messages that may wait to be said. What they hold is kept in memory besides the channel's window.
_MOST_WAITING = 4
# How long an end waits for what is being said just now.
_END_S = 5.0


class Courier:
    """Does one thing after the other. Its thread begins with the first and ends with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._errands: queue.Queue[Callable[[], object] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def put(self, errand: Callable[[], object]) -> None:
        """Do it soon. Waits while too many wait; raises what an earlier one raised."""
        self.check()
        if self._closed:
            raise RuntimeError(f"{self._name} was asked for something after its end")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._errands.put(errand)

    def flush(self) -> None:
        """Wait until all is done; raises what one of them raised."""
        if not self._closed:  # what was not begun by then never is
            self._errands.join()
        self.check()

    def check(self) -> None:
        """Raise what an errand raised."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Nothing more is begun. Waits a little for what is under way; may be called twice."""
        self._closed = True
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # then it is busy and will see that we closed
                self._errands.put_nowait(None)
            self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._closed:
            errand = self._errands.get()
            try:
                if errand is not None and self._failure is None and not self._closed:
                    errand()
            except BaseException as error:  # noqa: BLE001 - raised in the engine's thread
                self._failure = error
            finally:
                self._errands.task_done()
