"""Two ends of a channel in one process: what the real one does, without a network or a thread.

Frames cross when somebody sends or receives, in the caller's thread, through the same mailboxes and
the same parser as over a link. For tests and rehearsals: the link can be cut and a peer restarted.
"""

import threading

from splitlearn.channel.base import Released
from splitlearn.channel.handshake import MAX_SENTENCE_CHARACTERS, quoted
from splitlearn.channel.mailbox import DEFAULT_WINDOW, Mailbox
from splitlearn.errors import ChannelError, PeerError
from splitlearn.wire.frames import Assembler, Frame, chunks

__all__ = ["MemoryChannel", "pair"]


def pair(
    *, window: int = DEFAULT_WINDOW, names: tuple[str, str] = ("trusted", "compute")
) -> tuple["MemoryChannel", "MemoryChannel"]:
    """Two connected channels; `names` are the parties that hold them, in that order.

    >>> trusted, compute = pair()
    >>> trusted.peer, compute.peer
    ('compute', 'trusted')
    """
    wire = _Wire()
    ends = (
        MemoryChannel(wire, side=0, peer=names[1], window=window),
        MemoryChannel(wire, side=1, peer=names[0], window=window),
    )
    wire.ends = list(ends)
    wire.connect()
    return ends


class MemoryChannel:
    """A Channel in memory. `cut`, `heal` and `restart` are what a test does to it."""

    def __init__(self, wire: "_Wire", *, side: int, peer: str, window: int) -> None:
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0
        self._wire = wire
        self._side = side
        self._mailbox = Mailbox(peer, window=window, on_frame=wire.flow, on_ack=wire.flow)

    @property
    def mailbox(self) -> Mailbox:
        """The state of this end, for the wire and for tests that look inside."""
        return self._mailbox

    @property
    def over(self) -> bool:
        """See `Channel`."""
        return self._mailbox.over

    def send(self, released: Released, *, deadline_s: float) -> None:
        """See `Channel`."""
        self._mailbox.put(released, deadline_s=deadline_s)

    def receive(self, *, timeout_s: float) -> Frame:
        """See `Channel`."""
        return self._mailbox.take(timeout_s=timeout_s)

    def renew(self) -> None:
        """See `Channel`."""
        self._mailbox.renew()

    def close(self, *, reason: str | None = None) -> None:
        """See `Channel`. Nothing lingers here: what the wire did not carry yet is dropped."""
        self._wire.hang_up(self._side, reason=reason)
        self._mailbox.fail(ChannelError(f"the channel to {self.peer} was closed on this side"))

    def cut(self) -> None:
        """Break the link: what is sent from now on waits."""
        self._wire.disconnect()

    def heal(self) -> None:
        """Mend the link: both ends go on where they were."""
        self._wire.connect()

    def restart(self) -> "MemoryChannel":
        """Kill this end's process and start it anew: the other end sees a PeerRestarted."""
        self._mailbox.fail(ChannelError("this process was killed"))
        fresh = MemoryChannel(
            self._wire, side=self._side, peer=self.peer, window=self._mailbox.window
        )
        self._wire.replace(self._side, fresh)
        return fresh


class _Wire:
    """Moves frames and acknowledgements between two mailboxes while it is connected."""

    def __init__(self) -> None:
        self.ends: list[MemoryChannel] = []
        # Reentrant: a mailbox may call `flow` from within what the wire itself does.
        self._lock = threading.RLock()
        self._connected = False

    def connect(self) -> None:
        """Both ends attach where the other one stands."""
        with self._lock:
            for end, other in self._directions():
                if not end.mailbox.over and not other.mailbox.over:
                    end.mailbox.attach(received=other.mailbox.received, window=other.mailbox.window)
            self._connected = True
        self.flow()

    def disconnect(self) -> None:
        """Nothing moves any more."""
        with self._lock:
            self._connected = False
            for end in self.ends:
                end.mailbox.detach("cut by the test")

    def replace(self, side: int, fresh: MemoryChannel) -> None:
        """One end is a new process."""
        with self._lock:
            self.ends[side] = fresh
            self.ends[1 - side].mailbox.restart()
        self.connect()

    def hang_up(self, side: int, *, reason: str | None) -> None:
        """One end closes: the other one is told, if it can be."""
        self.flow()
        with self._lock:
            other = self.ends[1 - side]
            if not self._connected or self.ends[side].mailbox.over:
                return
            if reason is None:
                other.mailbox.end()
            else:
                said = quoted(reason[:MAX_SENTENCE_CHARACTERS])
                other.mailbox.fail(PeerError(f"{other.peer} says: {said}"))

    def flow(self) -> None:
        """Carry what there is to carry, in both directions."""
        with self._lock:
            if not self._connected:
                return
            for end, other in self._directions():
                self._carry(end, other)
            for end, other in self._directions():
                taken = other.mailbox.ack()
                if taken is not None and not end.mailbox.over:
                    end.mailbox.acked(taken)

    def _carry(self, end: MemoryChannel, other: MemoryChannel) -> None:
        while (raw := end.mailbox.next_frame()) is not None:
            end.bytes_sent += len(raw)
            other.bytes_received += len(raw)
            assembler = Assembler()
            for chunk in chunks(raw):
                frame = assembler.push(bytes(chunk))
                if frame is not None:
                    other.mailbox.arrive(frame)

    def _directions(self) -> list[tuple[MemoryChannel, MemoryChannel]]:
        if len(self.ends) != 2:
            return []
        first, second = self.ends
        return [(first, second), (second, first)]
