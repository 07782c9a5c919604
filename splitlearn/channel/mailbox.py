"""One conversation's memory: what was sent and not yet taken by the peer, what came and was not yet read.

Sequence, credit and resend state of both directions behind one lock; no I/O and no thread of its own.
An engine's threads call `put` and `take` and may wait there; the link's side calls the rest and never
waits. Frames are counted here from 0 in each direction, whatever numbers the session gives them.

    put -> kept frames -> next_frame ... peer ... arrive -> inbox -> take
             freed by acked(n)  <--- ack of taken frames ---  ack()
"""

import threading
from collections import deque
from collections.abc import Callable

from splitlearn.channel.base import PeerRestarted, Released
from splitlearn.errors import ChannelError, SplitLearnError, WireError
from splitlearn.wire.frames import Frame

__all__ = ["DEFAULT_WINDOW", "MAX_WINDOW", "Mailbox"]

# Frames that may be under way in one direction, and so be kept for resending: two for each of the
# sixteen micro-batches in flight that a job may ask for.
DEFAULT_WINDOW = 32
MAX_WINDOW = 256


class Mailbox:
    """State of one conversation with one peer, across broken links and restarts of the peer.

    window: frames we accept beyond those that were taken. on_frame and on_ack are called, without
    the lock, when there is something new to write: a frame, or an acknowledgement.
    """

    def __init__(
        self,
        peer: str,
        *,
        window: int,
        on_frame: Callable[[], object],
        on_ack: Callable[[], object],
    ) -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise ValueError(f"window of {window} frames; expected 1 to {MAX_WINDOW}")
        self.peer = peer
        self.window = window
        self._on_frame = on_frame
        self._on_ack = on_ack
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._news = threading.Condition(self._lock)
        self._link = "not connected yet"
        self._failure: tuple[type[SplitLearnError], str] | None = None
        self._ended = False
        self._restarted = False
        # Frames put and not yet known to be taken; the first has number _freed, the next one to be
        # written _cursor.
        self._kept: deque[bytes] = deque()
        self._freed = 0
        self._cursor = 0
        self._credit = window
        # Frames that came and were not taken; of those taken, the peer knows of _acked.
        self._inbox: deque[Frame] = deque()
        self._arrived = 0
        self._taken = 0
        self._acked = 0
        self._ack_at_once = False

    # Called by the engine.

    def put(self, released: Released, *, deadline_s: float) -> None:
        """Keep a frame for sending; waits for credit. Raises as `Channel.send` does."""
        with self._lock:
            self._go_on()
            self._room.wait_for(
                lambda: self._stopped or self._ended or len(self._kept) < self._credit,
                timeout=deadline_s,
            )
            self._go_on()
            if self._ended:
                raise ChannelError(
                    f"{self.peer} closed the channel; {released.kind} {released.seq} was not sent"
                )
            if len(self._kept) >= self._credit:
                raise ChannelError(
                    f"{self.peer} took none of {len(self._kept)} frames for {deadline_s:g} s, so "
                    f"{released.kind} {released.seq} was not sent; the link is {self._link}"
                )
            self._kept.append(released.raw)
        self._on_frame()

    def take(self, *, timeout_s: float) -> Frame:
        """The next frame that came. Raises as `Channel.receive` does."""
        with self._lock:
            self._go_on()
            self._news.wait_for(
                lambda: self._stopped or self._ended or bool(self._inbox), timeout=timeout_s
            )
            self._go_on()
            if not self._inbox:
                if self._ended:
                    raise ChannelError(f"{self.peer} closed the channel; nothing more will come")
                raise ChannelError(
                    f"{self.peer} sent nothing for {timeout_s:g} s; the link is {self._link}"
                )
            frame = self._inbox.popleft()
            self._taken += 1
            waiting = self._taken - self._acked
            ack = self._ack_at_once or waiting >= max(1, self.window // 2)
            self._ack_at_once = False
        if ack:
            self._on_ack()
        return frame

    def drain(self, *, timeout_s: float) -> bool:
        """Wait until the peer has taken all that was put; False if it did not within `timeout_s`."""
        with self._lock:
            self._room.wait_for(
                lambda: self._stopped or self._ended or not self._kept, timeout=timeout_s
            )
            return not self._kept

    def check(self) -> None:
        """Raise what `fail` was told, if it was."""
        with self._lock:
            self._go_on()

    def renew(self) -> None:
        """Whoever had to know of a restart knows: `put` and `take` go on, with the new process."""
        with self._lock:
            self._restarted = False

    # Called by the link.

    @property
    def over(self) -> bool:
        """Whether the conversation has ended, well or badly: no link is needed any more."""
        with self._lock:
            return self._ended or self._failure is not None

    @property
    def received(self) -> int:
        """Frames that have come whole: the first one a new link has to bring."""
        with self._lock:
            return self._arrived

    @property
    def untouched(self) -> bool:
        """Whether nothing came and nothing was acknowledged: a first handshake may be repeated."""
        with self._lock:
            return self._arrived == 0 and self._freed == 0

    def attach(self, *, received: int, window: int) -> None:
        """A link is up: the peer has `received` of our frames and accepts `window` untaken ones.

        Sending goes on from there. WireError if that is not a place we can go on from.
        """
        with self._lock:
            last = self._freed + len(self._kept)
            if not self._freed <= received <= last:
                raise WireError(
                    f"{self.peer} says it received {received} frames; expected {self._freed} to "
                    f"{last}; the peer has lost its place, so the run has to be started again"
                )
            self._cursor = received
            self._credit = min(self.window, window)
            self._link = "up"
            self._room.notify_all()

    def detach(self, why: str) -> None:
        """The link is gone, for a reason that a timeout will quote."""
        with self._lock:
            self._link = f"down: {why}"

    def next_frame(self) -> bytes | None:
        """The next frame to write on this link, or None."""
        with self._lock:
            index = self._cursor - self._freed
            if index >= len(self._kept):
                return None
            self._cursor += 1
            return self._kept[index]

    def arrive(self, frame: Frame) -> None:
        """A frame came. WireError if the peer had no credit for it."""
        with self._lock:
            if self._ended or self._failure is not None:
                return
            # Taken but not acknowledged is our debt, not the peer's mistake.
            if self._arrived - self._acked >= self.window:
                raise WireError(
                    f"{self.peer} sent frame {self._arrived} while {self.window} were not yet "
                    "acknowledged; the peer ignores its credit"
                )
            self._arrived += 1
            self._inbox.append(frame)
            self._news.notify()

    def ack(self, *, again: bool = False) -> int | None:
        """Frames taken in all, if that is news to the peer; the caller tells it.

        With `again` even if it was told before: the acknowledgement may be lost with its link.
        """
        with self._lock:
            if self._taken == self._acked and not again:
                return None
            self._acked = self._taken
            return self._taken

    def ack_soon(self) -> bool:
        """Whether there is something to acknowledge; if not, the next `take` does so at once."""
        with self._lock:
            if self._taken > self._acked:
                return True
            self._ack_at_once = bool(self._inbox)
            return False

    def acked(self, taken: int) -> None:
        """The peer has taken `taken` of our frames in all. WireError if it cannot have."""
        with self._lock:
            if not self._freed <= taken <= self._cursor:
                raise WireError(
                    f"{self.peer} acknowledges {taken} frames; expected {self._freed} to "
                    f"{self._cursor}; the peer miscounts"
                )
            while self._freed < taken:
                if self._kept:  # a failure leaves none, and the peer may not know of it yet
                    self._kept.popleft()
                self._freed += 1
            self._room.notify_all()

    def restart(self) -> None:
        """The peer is a new process: forget both directions; PeerRestarted until somebody renews."""
        with self._lock:
            self._clear()
            self._restarted = True
            self._room.notify_all()
            self._news.notify_all()

    def end(self) -> None:
        """The peer closed well: what came may still be taken, nothing more can be put."""
        with self._lock:
            self._ended = True
            self._room.notify_all()
            self._news.notify_all()

    def fail(self, error: SplitLearnError) -> None:
        """No more of anything: every later call raises this. The first failure stays."""
        with self._lock:
            if self._failure is None:
                # Not the exception itself: its traceback would keep the link's streams alive.
                self._failure = type(error), str(error)
                self._inbox.clear()
                self._kept.clear()
            self._room.notify_all()
            self._news.notify_all()

    # Private; the lock is held.

    def _clear(self) -> None:
        self._kept.clear()
        self._freed = 0
        self._cursor = 0
        self._credit = self.window
        self._inbox.clear()
        self._arrived = 0
        self._taken = 0
        self._acked = 0
        self._ack_at_once = False

    @property
    def _stopped(self) -> bool:
        return self._failure is not None or self._restarted

    def _go_on(self) -> None:
        """Raise what stands in the way."""
        if self._failure is not None:
            kind, sentence = self._failure
            raise kind(sentence)
        if self._restarted:
            raise PeerRestarted(
                f"{self.peer} came back as a new process; what it had not answered is lost, so the "
                "session starts again from the last common checkpoint"
            )
