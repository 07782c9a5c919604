"""Who may speak with a listener, and which conversation a HELLO belongs to.

Judged by certificate before a word is believed; every refusal is one sentence for both sides. A new
process of a party goes on with the party's conversation, an old one that was superseded does not.
Used in a listener's loop only; opens no stream and writes nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from splitlearn.channel import handshake
from splitlearn.channel.conversation import Conversation
from splitlearn.channel.handshake import Code, Hello, VersionError
from splitlearn.errors import ChannelError, IdentityError, WireError
from splitlearn.identity import Identity, PartyName, Peer, authorise
from splitlearn.roles import Role

__all__ = ["Admission", "Reception", "RefusalError", "Seat"]

# How many closed conversations are remembered, to tell a dialler that missed the bye.
_MAX_CLOSED = 64


class RefusalError(Exception):
    """A HELLO is not accepted. The sentence goes to the dialler and to whoever runs the listener."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


@dataclass
class Seat:
    """One party's place: its conversation, the process it speaks with, and the pump of its link.

    accepted: an engine holds the conversation. established: the dialler has had our ACK.
    """

    conversation: Conversation
    incarnation: str
    accepted: bool = False
    established: bool = False
    pump: asyncio.Task[None] | None = None

    def settle(self, pump: asyncio.Task[None]) -> None:
        """A pump ended. What nobody foresaw must not leave the engine waiting."""
        error = None if pump.cancelled() else pump.exception()
        if error is not None:
            broke = f"the channel to {self.conversation.peer} broke: {error!r}"
            self.conversation.mailbox.fail(ChannelError(broke))


@dataclass(frozen=True)
class Admission:
    """Who may dial. peer: one party in one role, or None for any party in one of `roles`."""

    roles: frozenset[Role]
    peer: PartyName | None
    run: str

    def judge(
        self, data: bytes, *, tls: str, certificate: Callable[[], bytes], own: Identity
    ) -> tuple[Hello, Peer]:
        """The HELLO in `data` and whom TLS proved to have said it. Raises RefusalError."""
        if tls != "TLSv1.3":
            raise RefusalError("protocol", f"the connection is {tls}; expected TLSv1.3")
        try:
            hello = handshake.decode_hello(data)
            peer = authorise(
                certificate(),
                ca=own.ca,
                expected=self.peer,
                federation=own.name.federation,
                roles=self.roles,
                denied=own.denied,
                now=datetime.now(UTC),
            )
        except IdentityError as error:
            raise RefusalError("identity", str(error)) from None
        except (VersionError, WireError) as error:
            raise RefusalError("protocol", str(error)) from None
        if (hello.federation, hello.party, hello.role) != (
            peer.name.federation,
            peer.name.party,
            peer.name.role,
        ):
            raise RefusalError(
                "identity",
                f"HELLO is from {hello.role} {hello.party} of {hello.federation}, its certificate "
                f"from {peer.name.uri}",
            )
        if hello.expects != own.name.uri:
            raise RefusalError("name", f"{hello.expects} was dialled, but this is {own.name.uri}")
        if self.run and hello.run and hello.run != self.run:
            raise RefusalError("run", f"this is run {self.run!r}, not {hello.run!r}")
        return hello, peer


class Reception:
    """The seats of one listener. `new` makes a conversation, or raises RefusalError("busy")."""

    def __init__(self, incarnation: str, *, run: str, new: Callable[[Hello, Peer], Seat]) -> None:
        self._incarnation = incarnation
        self._run = run
        self._new = new
        self._seats: dict[PartyName, Seat] = {}
        self._closed: dict[str, str | None] = {}

    def seats(self) -> list[Seat]:
        """Everyone who has a conversation."""
        return list(self._seats.values())

    def holds(self, seat: Seat) -> bool:
        """Whether this is still its party's seat, with a conversation that goes on."""
        conversation = seat.conversation
        return self._seats.get(conversation.name) is seat and not conversation.mailbox.over

    async def admit(self, hello: Hello, *, peer: Peer) -> Seat:
        """The seat for a judged HELLO, free of any older link, its mailbox attached.

        Raises RefusalError. No two calls may run at the same time.
        """
        seat = self._seats.get(peer.name)
        if seat is not None and self._superseded(seat, hello):
            raise RefusalError("closed", f"another process of {peer.name.dns} took over")
        if seat is not None and seat.pump is not None:
            # What the old link has not delivered will come again over the new one.
            seat.pump.cancel()
            await asyncio.wait({seat.pump})
        received = hello.received
        if seat is not None and not self._continues(seat, hello):
            seat = self._restarted(seat, hello)
            received = 0
        if seat is None:
            # Whatever it received before was another listener's.
            seat = self._begin(hello, peer)
            received = 0
        try:
            seat.conversation.mailbox.attach(received=received, window=hello.window)
        except WireError as error:
            raise RefusalError("protocol", str(error)) from None
        seat.conversation.authorised = peer
        seat.established = seat.established or hello.listener == self._incarnation
        return seat

    def forget(self, seat: Seat, *, reason: str | None) -> None:
        """The engine closed this conversation: its dialler is told so should it come back."""
        if self._seats.get(seat.conversation.name) is seat:
            del self._seats[seat.conversation.name]
        while len(self._closed) >= _MAX_CLOSED:
            del self._closed[next(iter(self._closed))]
        self._closed[seat.incarnation] = reason

    def _superseded(self, seat: Seat, hello: Hello) -> bool:
        """Whether an older process comes back after a newer one began."""
        return hello.listener == self._incarnation and hello.incarnation != seat.incarnation

    def _continues(self, seat: Seat, hello: Hello) -> bool:
        """Whether this HELLO goes on with the seat's conversation, or comes from a new process."""
        if hello.incarnation != seat.incarnation or seat.conversation.mailbox.over:
            return False
        if hello.listener == self._incarnation:
            return True
        # Our first ACK may have been lost on the way.
        return not hello.listener and not seat.established and seat.conversation.mailbox.untouched

    def _restarted(self, seat: Seat, hello: Hello) -> Seat | None:
        """The seat made fresh for a new process, or None if it cannot go on there."""
        conversation = seat.conversation
        same_run = (hello.run or self._run) == conversation.run
        if seat.accepted and same_run and not conversation.mailbox.over:
            conversation.mailbox.restart()
            seat.incarnation = hello.incarnation
            seat.established = False
            return seat
        conversation.mailbox.fail(
            ChannelError(f"{conversation.peer} came back as a new process for another conversation")
        )
        del self._seats[conversation.name]
        return None

    def _begin(self, hello: Hello, peer: Peer) -> Seat:
        if hello.listener == self._incarnation:
            why = self._closed.get(hello.incarnation)
            raise RefusalError(
                "closed", "this conversation was closed" + (f": {why}" if why else "")
            )
        seat = self._new(hello, peer)
        self._seats[peer.name] = seat
        return seat
