"""A thread with one asyncio loop: where a channel's streams live while the engine's threads compute.

Started with its owner and ended with it; nothing of it is shared. The thread is a daemon, so that a
process whose owner forgot to close can still end.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from splitlearn.errors import ChannelError

__all__ = ["LoopThread"]

T = TypeVar("T")

# Seconds that the tasks of a closing loop get to end once they were cancelled, and the whole closing,
# with what it may have running in other threads, takes at most.
_CANCEL_S = 2.0
_CLOSE_S = 5.0

# Where gRPC reads what wakes a loop.
_GRPC_WAKES_IN = "aio/completion_queue.pyx.pxi"
# asyncio's words for a call to a loop that is no more.
_CLOSED = "Event loop is closed"


class LoopThread:
    """Runs coroutines for other threads. `close` cancels what still runs and joins the thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_told)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], *, timeout_s: float) -> T:
        """Run `work` there and wait for it here. ChannelError if it takes longer, or if closed."""
        future = self._begin(work)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise ChannelError(f"the network did not answer within {timeout_s:g} s") from None
        except concurrent.futures.CancelledError:
            raise ChannelError("the channel was closed meanwhile") from None

    def start(
        self, work: Coroutine[object, object, None], *, on_failure: Callable[[BaseException], None]
    ) -> None:
        """Run `work` there and don't wait; `on_failure` is called there if it raises.

        ChannelError if closed.
        """

        def done(future: concurrent.futures.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                on_failure(error)

        self._begin(work).add_done_callback(done)

    def soon(self, call: Callable[[], object]) -> None:
        """Make `call` there as soon as the loop gets to it; nothing once the loop is closed."""
        # The only RuntimeError that there is: the loop is closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _begin(self, work: Coroutine[object, object, T]) -> "concurrent.futures.Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # another thread may close the loop at any moment
            work.close()
            raise ChannelError("the channel is closed") from None

    def close(self) -> None:
        """Cancel what runs, end the loop, join the thread. Bounded; may be called twice."""
        self.soon(self._loop.stop)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio says of an exception that nobody waits for, but for two that are no fault.

    gRPC wakes loops through one socket pair for the whole process. It closes it with its last object, in
    whichever thread that goes, and a loop that is just about to read from it finds it closed. And whichever
    loop wakes hands the others theirs: the last words for one that a closed channel had are nobody's.
    """
    error = context.get("exception")
    if isinstance(error, OSError | RuntimeError):
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        within = [place for place, file in enumerate(files) if file.endswith(_GRPC_WAKES_IN)]
        reads = isinstance(error, OSError) and error.errno == errno.EBADF
        hands_on = isinstance(error, RuntimeError) and str(error) == _CLOSED
        if within and ((reads and within[-1] == len(files) - 1) or hands_on):
            return
    loop.default_exception_handler(context)
