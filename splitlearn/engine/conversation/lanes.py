"""Several channels heard at once, by a party that answers whichever of its peers has something to say.

A thread for each takes frames off its channel ahead, so that what comes next is known before its turn, and
that a peer is gone though a word of it waits. What was not taken from here is in no log. Decides nothing
about turns.
"""

import threading
from collections import deque

from splitlearn.channel.base import Channel, Released
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.errors import ChannelError, PeerError
from splitlearn.wire.frames import Frame

__all__ = ["BridgeLost", "Lane", "Lanes"]

# How long a thread waits at once, which is what an end may have to wait for it.
_SLICE_S = 0.2
# Frames that are taken ahead: twice a window, so that no honest peer ever waits for it.
_MOST_AHEAD = 2 * DEFAULT_WINDOW


class BridgeLost(ChannelError):
    """A neighbour's link, process or conversation ended: what follows, the trusted party decides."""


class Lanes:
    """What the lanes of one party have in common: a count of their news, and a way to wait for more."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Frames that came, and ends, so far."""
        with self.changed:
            return self._count

    def wait(self, *, count: int, timeout_s: float) -> bool:
        """Whether there is more news than `count`, at the latest after `timeout_s`."""
        with self.changed:
            return self.changed.wait_for(lambda: self._count > count, timeout=timeout_s)

    def tell(self) -> None:
        """There is news. With `changed` held."""
        self._count += 1
        self.changed.notify_all()


class Lane:
    """A Channel whose next frame can be looked at. From `stop` on the channel is its owner's again.

    neighbour: whether whatever ends it is a BridgeLost.
    """

    def __init__(self, channel: Channel, *, lanes: Lanes, neighbour: bool = False) -> None:
        self._channel, self._lanes, self._neighbour = channel, lanes, neighbour
        self._frames: deque[Frame] = deque()
        self._ended: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, name=f"lane of {channel.peer}", daemon=True
        )
        self._thread.start()

    @property
    def peer(self) -> str:
        """See `Channel`."""
        return self._channel.peer

    @property
    def bytes_sent(self) -> int:
        """See `Channel`."""
        return self._channel.bytes_sent

    @property
    def bytes_received(self) -> int:
        """See `Channel`."""
        return self._channel.bytes_received

    @property
    def over(self) -> bool:
        """See `Channel`."""
        return self._channel.over

    def next(self) -> Frame | None:
        """The frame that `receive` would give, if one has come; raises what ended the channel."""
        with self._lanes.changed:
            if self._frames:
                return self._frames[0]
            if self._ended is not None:
                raise self._ended
            return None

    def send(self, released: Released, *, deadline_s: float) -> None:
        """See `Channel`."""
        try:
            self._channel.send(released, deadline_s=deadline_s)
        except (ChannelError, PeerError) as error:
            raise self._as_told(error) from error

    def receive(self, *, timeout_s: float) -> Frame:
        """See `Channel`."""
        with self._lanes.changed:
            self._lanes.changed.wait_for(
                lambda: self._frames or self._ended is not None, timeout=timeout_s
            )
            if self._frames:
                self._lanes.changed.notify_all()
                return self._frames.popleft()
            if self._ended is not None:
                raise self._ended
        raise ChannelError(f"{self.peer} sent nothing for {timeout_s:g} s")

    def renew(self) -> None:
        """See `Channel`."""
        self._channel.renew()

    def close(self, *, reason: str | None = None) -> None:
        """See `Channel`."""
        self._channel.close(reason=reason)
        self.stop()

    def stop(self) -> None:
        """Take no more frames off the channel."""
        with self._lanes.changed:
            self._stopped = True
            self._lanes.changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            over = self._channel.over
            try:
                frame = self._channel.receive(timeout_s=_SLICE_S)
            except Exception as error:  # noqa: BLE001 - raised in the engine's thread
                # A channel that was over before we listened has nothing more; else there was nothing yet.
                if over or type(error) is not ChannelError:
                    self._end(error)
                    return
                continue
            with self._lanes.changed:
                self._frames.append(frame)
                self._lanes.tell()
                self._lanes.changed.wait_for(
                    lambda: len(self._frames) < _MOST_AHEAD or self._stopped
                )

    def _end(self, error: Exception) -> None:
        with self._lanes.changed:
            if type(error) is not ChannelError:  # what it said before is void
                self._frames.clear()
            self._ended = self._as_told(error)
            self._lanes.tell()

    def _as_told(self, error: Exception) -> Exception:
        if not self._neighbour or isinstance(error, BridgeLost):
            return error
        return BridgeLost(f"the hop to {self.peer} is lost: {error}")
