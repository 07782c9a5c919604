"""What a channel is: three methods that carry released bytes to one peer and frames back.

A channel keeps order, delivers each frame exactly once while both processes live, and mends broken
links by itself. It never looks into a frame, never decides what may leave (the gate does) and never
knows which message is legal when (the session does).
"""

from dataclasses import dataclass, field
from typing import Protocol

from splitlearn.errors import ChannelError
from splitlearn.roles import Kind
from splitlearn.wire.frames import Frame

__all__ = ["Channel", "PeerRestarted", "Released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Wire bytes that the gate has let out. Only the gate makes one; a channel sends nothing else.

    raw is the whole frame, header included: the very bytes whose digest stands in the log. error: what
    its codec lost, norm of the difference over the norm.
    """

    kind: Kind
    seq: int
    raw: bytes = field(repr=False)
    error: float = 0.0


class PeerRestarted(ChannelError):
    """The peer came back as a new process: what it had not answered is gone, the session starts anew.

    Raised by every `send` and `receive` from then on, so that no thread can still send something of
    the old conversation, until `renew` is called: begin the conversation again on the same channel.
    """


class Channel(Protocol):
    """A connection to one peer. `send` and `receive` may be called from different threads."""

    @property
    def peer(self) -> str:
        """The peer's name for messages, as `compute.beta.example`."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the link so far: frames, resent ones too, handshakes and control."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes that came off the link so far, counted as `bytes_sent` is."""
        ...

    @property
    def over(self) -> bool:
        """Whether the conversation has ended, well or badly: nothing more will come."""
        ...

    def send(self, released: Released, *, deadline_s: float) -> None:
        """Hand one frame to the link; waits while the peer's credit is used up.

        Returning means queued and kept for resending, not arrived.

        Raises:
            ChannelError: no credit within `deadline_s`, or the channel is closed.
            PeerRestarted: see there; this frame was not sent.
            PeerError: the peer aborted, with its sentence quoted, or broke the protocol.
        """
        ...

    def receive(self, *, timeout_s: float) -> Frame:
        """The next frame, in order. Taking it is what gives the peer its credit back.

        Raises:
            ChannelError: nothing came within `timeout_s` (names the peer and the state of the
                link), or the channel is closed.
            PeerRestarted: see there.
            PeerError: the peer aborted, with its sentence quoted, or broke the protocol.
        """
        ...

    def renew(self) -> None:
        """A conversation begins: what was told, or would have been, of restarts until now is over."""
        ...

    def close(self, *, reason: str | None = None) -> None:
        """End the conversation, within a few seconds whatever the peer does. May be called twice.

        Without a reason what was sent is first delivered, as far as the link allows. With one, it is
        dropped and the peer's next call raises a PeerError that quotes the reason.
        """
        ...
