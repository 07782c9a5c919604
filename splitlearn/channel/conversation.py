"""The channel that an engine holds: a mailbox, and whichever link is up at the moment.

Whoever made it, dialler or listener, puts links under it and decides what follows when one breaks.
Blocking calls belong to the engine's threads, everything else to the loop.
"""

import asyncio
from collections.abc import Callable, Sequence

from splitlearn.channel.base import Released
from splitlearn.channel.link import FAREWELL_S, Link, Tally
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.mailbox import Mailbox
from splitlearn.errors import ChannelError
from splitlearn.identity import PartyName, Peer
from splitlearn.wire.frames import Frame

__all__ = ["LINGER_S", "Conversation"]

# How long a good close waits until the peer has taken what was sent.
LINGER_S = 2.0
# How long a close waits for a first link that is being made.
FIRST_LINK_S = 0.5


class Conversation:
    """A Channel over gRPC. `on_close` is called once, from the thread that closes, after the bye."""

    def __init__(
        self,
        name: PartyName,
        *,
        run: str,
        window: int,
        loop: LoopThread,
        on_close: Callable[[str | None], None],
    ) -> None:
        self.name = name
        self.run = run
        self.authorised: Peer | None = None
        self.tally = Tally()
        self.link: Link | None = None
        self._loop = loop
        self._on_close = on_close
        self._closed = False
        self.mailbox = Mailbox(
            name.dns,
            window=window,
            on_frame=lambda: loop.soon(self._wake_frames),
            on_ack=lambda: loop.soon(self._wake_acks),
        )

    @property
    def peer(self) -> str:
        """See `Channel`."""
        return self.name.dns

    @property
    def bytes_sent(self) -> int:
        """See `Channel`."""
        return self.tally.sent

    @property
    def bytes_received(self) -> int:
        """See `Channel`."""
        return self.tally.received

    @property
    def over(self) -> bool:
        """See `Channel`."""
        return self.mailbox.over

    def send(self, released: Released, *, deadline_s: float) -> None:
        """See `Channel`."""
        self.mailbox.put(released, deadline_s=deadline_s)

    def receive(self, *, timeout_s: float) -> Frame:
        """See `Channel`."""
        return self.mailbox.take(timeout_s=timeout_s)

    def renew(self) -> None:
        """See `Channel`."""
        self.mailbox.renew()

    def probe(self, sizes: Sequence[tuple[int, int]], *, deadline_s: float) -> list[float]:
        """Measure the link with zeros beside the frames: for each (there, back) in bytes, up to
        MAX_ZEROS, the seconds from now until its answer. At most MAX_PROBES at once.

        Raises ChannelError if the link is down or the answers take longer than `deadline_s`.
        """
        link = self.link
        if link is None:
            raise ChannelError(f"there is no link to {self.peer} to measure")
        self.mailbox.check()
        return self._loop.run(link.probe(sizes), timeout_s=deadline_s)

    def close(self, *, reason: str | None = None) -> None:
        """See `Channel`."""
        if self._closed:
            return
        self._closed = True
        if reason is None and not self.mailbox.over:
            self.mailbox.drain(timeout_s=LINGER_S)
        try:
            self._loop.run(self._leave(reason), timeout_s=FAREWELL_S + 1.0)
        except ChannelError:
            pass  # The peer will find out by its own deadline.
        finally:
            self.mailbox.fail(ChannelError(f"the channel to {self.peer} was closed on this side"))
            self._on_close(reason)

    async def _leave(self, reason: str | None) -> None:
        # Taken up at once and given up at once: the first link is only just being made, and without
        # it the peer would not hear why.
        give_up_s = asyncio.get_running_loop().time() + FIRST_LINK_S
        while self.link is None and not self.tally.received:
            if asyncio.get_running_loop().time() > give_up_s:
                break
            await asyncio.sleep(0.01)
        # Ended before the bye: nobody shall mend the link that the peer hangs up on.
        self.mailbox.end()
        if self.link is not None:
            await self.link.leave(reason)

    def _wake_frames(self) -> None:
        if self.link is not None:
            self.link.wake_frames()

    def _wake_acks(self) -> None:
        if self.link is not None:
            self.link.wake_acks()
