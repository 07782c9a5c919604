"""The listening end: one port that answers dialled parties, one after another, and turns others away.

Every dialler is judged by its certificate before a word of it is believed; who is refused is told why
in one sentence, and so is whoever runs this listener. A stranger never ends a conversation.
"""

import asyncio
import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from splitlearn.channel import handshake
from splitlearn.channel.conversation import Conversation
from splitlearn.channel.handshake import Hello, Refused, Signed, Welcome
from splitlearn.channel.link import Link
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.channel.reception import Admission, Reception, RefusalError, Seat
from splitlearn.channel.streams import CONTROL, FRAMES, LinkLost, Server, ServerStream, Stream
from splitlearn.errors import ChannelError, PeerError, SplitLearnError
from splitlearn.identity import Identity, PartyName, Peer
from splitlearn.identity.judge import check_dates
from splitlearn.roles import Role

__all__ = ["Listener"]

# Whoever connects and has not said HELLO by then is not one of ours.
_HELLO_S = 5.0

# Conversations that wait to be accepted; more are told to come back.
_MAX_WAITING = 16

# How often a handshake may look for a renewed certificate on disk.
_RELOAD_S = 1.0

# A TLS handshake takes a few round trips; after this long it has failed.
_TLS_S = 3.0

# The same news about strangers is told at most this often.
_STRANGER_S = 30.0


class Listener:
    """Serves diallers until it is closed. `accept` may be called from any thread."""

    def __init__(
        self,
        address: str,
        *,
        identity: Identity,
        expect_roles: frozenset[Role],
        peer: PartyName | None = None,
        run: str = "",
        incarnation: str | None = None,
        window: int = DEFAULT_WINDOW,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Listen on `address` ("host:port", port 0 for any free one).

        expect_roles and peer: who may dial; without `peer` any party in one of the roles. run: the
        run that a dialler has to ask for, empty for any. report: is told in one sentence about
        everyone who was refused, from another thread.

        Raises IdentityError if our own certificate is not valid, ManifestError if the address cannot
        be had.
        """
        check_dates(identity.certificate, whose="our own certificate", now=datetime.now(UTC))
        self._identity = identity
        self._identity_lock = threading.Lock()
        self._reloaded_s = time.monotonic()
        self._incarnation = incarnation or secrets.token_hex(16)
        self._window = window
        self._report = report
        self._refused = ""
        self._waiting: queue.SimpleQueue[Seat | None] = queue.SimpleQueue()
        self._admission = Admission(expect_roles, peer, run)
        self._reception = Reception(self._incarnation, run=run, new=self._new_seat)
        self._links: dict[bytes, _Link] = {}
        self._strangers = _Strangers(self._refuse_unseen)
        self._desk = asyncio.Lock()
        self._closed = False
        self._loop = LoopThread(f"listener of {identity.name.dns}")
        self._server: Server | None = None
        try:
            self._server = self._loop.run(self._open(address), timeout_s=_HELLO_S)
        except BaseException:
            self._loop.close()
            raise
        self._port = self._server.port

    @property
    def port(self) -> int:
        """The TCP port that is listened on."""
        return self._port

    def accept(self, *, timeout_s: float) -> Conversation:
        """The next conversation that a new process began.

        Raises ChannelError if there was none within `timeout_s`, or the listener is closed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                seat = self._waiting.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                refused = f"; last refused: {self._refused}" if self._refused else ""
                raise ChannelError(
                    f"nobody to speak with dialled port {self._port} for {timeout_s:g} s{refused}"
                ) from None
            if seat is None:
                self._waiting.put(None)
                raise ChannelError("the listener is closed")
            if self._loop.run(self._take(seat), timeout_s=_HELLO_S):
                return seat.conversation

    def close(self) -> None:
        """Abort open conversations, free the port, end the thread. Bounded; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._waiting.put(None)
        with contextlib.suppress(ChannelError):
            seats = self._loop.run(self._leave(), timeout_s=_HELLO_S)
            for seat in seats:
                seat.conversation.close(reason="the listener was closed")
            assert self._server is not None
            self._loop.run(self._server.stop(), timeout_s=_HELLO_S)
        # gRPC's own thread ends with the last of its objects.
        self._server = None
        self._loop.close()

    async def _open(self, address: str) -> Server:
        server = Server(
            address,
            identity=self._tls_identity,
            handlers={FRAMES: self._on_frames, CONTROL: self._on_control},
        )
        await server.start()
        return server

    async def _take(self, seat: Seat) -> bool:
        """Whether a waiting seat is still wanted; it is then accepted."""
        seat.accepted = self._reception.holds(seat)
        return seat.accepted

    async def _leave(self) -> list[Seat]:
        return self._reception.seats()

    def _tls_identity(self) -> Identity:
        """Called by gRPC, in a thread of its own, at every TLS handshake (and once at the start)."""
        if self._server is not None:
            self._loop.soon(self._strangers.handshake)
        return self._current()

    def _current(self) -> Identity:
        """Our identity with the certificate as it lies on disk now; a broken folder changes nothing."""
        with self._identity_lock:
            if time.monotonic() - self._reloaded_s > _RELOAD_S:
                self._reloaded_s = time.monotonic()
                with contextlib.suppress(SplitLearnError):
                    self._identity = self._identity.reload()
            return self._identity

    def _refuse_unseen(self, sentence: str) -> None:
        self._refused = sentence
        self._report(sentence)

    async def _on_frames(self, stream: ServerStream) -> None:
        """One dialled stream of frames, from its HELLO to its end."""
        self._strangers.stream()
        try:
            async with asyncio.timeout(_HELLO_S):
                data = await stream.read()
            if data is None:
                return
            try:
                hello, peer = self._admission.judge(
                    data, tls=stream.tls, certificate=stream.certificate_der, own=self._current()
                )
                async with self._desk:
                    seat = await self._reception.admit(hello, peer=peer)
                    pump = asyncio.create_task(self._pump(seat, stream, data=data))
                    pump.add_done_callback(seat.settle)
                    seat.pump = pump
            except RefusalError as refusal:
                self._refuse_unseen(f"refused {stream.address}: {refusal.sentence}")
                await stream.write(
                    handshake.encode_ack(Refused(refusal.code, refusal.sentence[:400]))
                )
                return
            try:
                await asyncio.wait({pump})
            finally:
                # gRPC cancels this handler when the dialler is gone.
                pump.cancel()
                if seat.pump is pump:
                    seat.pump = None
        except (LinkLost, TimeoutError):
            return

    async def _on_control(self, stream: ServerStream) -> None:
        """The control stream of a link, for as long as the link lives."""
        self._strangers.stream()
        try:
            async with asyncio.timeout(_HELLO_S):
                data = await stream.read()
            link = self._links.get(handshake.decode_attach(data or b"").link)
            if link is None or link.certificate != stream.certificate_der():
                return
            if not link.control.done():
                link.control.set_result(stream)
                await link.over.wait()
        except (LinkLost, TimeoutError):
            return
        except PeerError as error:
            self._refuse_unseen(f"refused {stream.address}: {error}")

    def _new_seat(self, hello: Hello, peer: Peer) -> Seat:
        if self._closed or self._waiting.qsize() >= _MAX_WAITING:
            raise RefusalError("busy", "this listener takes no more conversations at the moment")

        def on_close(reason: str | None) -> None:
            self._loop.soon(lambda: self._forget(seat, reason))

        conversation = Conversation(
            peer.name,
            run=hello.run or self._admission.run,
            window=self._window,
            loop=self._loop,
            on_close=on_close,
        )
        seat = Seat(conversation, hello.incarnation)
        self._waiting.put(seat)
        return seat

    def _forget(self, seat: Seat, reason: str | None) -> None:
        self._reception.forget(seat, reason=reason)
        if seat.pump is not None:
            seat.pump.cancel()
            seat.pump = None

    async def _pump(self, seat: Seat, stream: ServerStream, *, data: bytes) -> None:
        """ACK, then one link to its end. What goes wrong is left in the mailbox."""
        conversation = seat.conversation
        token = secrets.token_bytes(16)
        link = _Link(stream.certificate_der(), asyncio.get_running_loop().create_future())
        self._links[token] = link
        why = "the connection broke"
        try:
            ack = self._ack(seat, data=data, token=token)
            conversation.tally.sent += len(ack)
            await stream.write(ack)
            conversation.tally.received += len(data)
            conversation.link = Link(conversation.mailbox, frames=stream, tally=conversation.tally)
            await conversation.link.run(link.control)
            why = "the peer hung up"
        except LinkLost as lost:
            why = str(lost)
        except PeerError as error:
            why = str(error)
        finally:
            conversation.link = None
            conversation.mailbox.detach(f"{why}; waiting for {conversation.peer} to dial again")
            del self._links[token]
            link.over.set()

    def _ack(self, seat: Seat, *, data: bytes, token: bytes) -> bytes:
        own = self._current()
        mailbox = seat.conversation.mailbox
        body = handshake.encode_body(
            Welcome(
                federation=own.name.federation,
                party=own.name.party,
                role=own.name.role,
                run=seat.conversation.run,
                incarnation=self._incarnation,
                received=mailbox.received,
                window=mailbox.window,
                nonce=secrets.token_bytes(16),
                link=token,
                certificate=own.certificate_der,
            )
        )
        signature = own.sign(handshake.signed_message(data, body=body))
        return handshake.encode_ack(Signed(body, signature))


class _Link:
    """What ties a control stream to a link: the token it shows, the certificate it must have."""

    def __init__(self, certificate: bytes, control: asyncio.Future[Stream]) -> None:
        self.certificate = certificate
        self.control = control
        self.over = asyncio.Event()


class _Strangers:
    """Counts TLS handshakes that never became a stream: gRPC does not tell why, nor that, they failed."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._handshakes = 0
        self._streams = 0
        self._failed = 0
        self._told_s = -_STRANGER_S

    def handshake(self) -> None:
        """TLS begins on some connection."""
        self._handshakes += 1
        asyncio.get_running_loop().call_later(_TLS_S, self._look, self._handshakes)

    def stream(self) -> None:
        """A connection came through: each of ours carries one stream."""
        self._streams += 1

    def _look(self, number: int) -> None:
        if self._streams + self._failed >= number:
            return
        self._failed += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_s >= _STRANGER_S:
            self._told_s = now
            self._report(
                "somebody connected and got no further than TLS: its certificate is of another CA, "
                "expired or not yet valid, or it does not take ours, or it is no party at all; "
                "`splitlearn doctor` at the dialler names the reason"
            )
