"""The dialling end of a channel: connects, proves both sides, and redials whenever the link breaks.

A link that breaks is mended for as long as the channel is open; only the engine's own deadlines end
the waiting. A refusal is final: it is told at once and never tried again.
"""

import asyncio
import contextlib
import secrets
from datetime import UTC, datetime

from splitlearn.channel import handshake
from splitlearn.channel.conversation import Conversation
from splitlearn.channel.handshake import Hello, Refused, Signed, Welcome, quoted
from splitlearn.channel.link import Link
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.channel.streams import CONTROL, FRAMES, Connection, LinkLost
from splitlearn.errors import ChannelError, IdentityError, PeerError, SplitLearnError
from splitlearn.identity import Identity, PartyName, authorise, probe, verify_proof
from splitlearn.identity.judge import check_dates

__all__ = ["HANDSHAKE_S", "connect"]

# A listener that has not answered a HELLO by then is not there.
HANDSHAKE_S = 5.0

# Between two tries to dial: at first soon, then once a second.
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 1.0

# One plain handshake to learn why gRPC's failed.
_PROBE_S = 2.0

# How often a dialler looks whether its certificate was renewed on disk.
_RENEWAL_LOOK_S = 60.0

_REFUSED_IDENTITY = frozenset({"identity", "name"})


def connect(
    address: str,
    *,
    identity: Identity,
    peer: PartyName,
    run: str = "",
    incarnation: str | None = None,
    deadline_s: float,
    window: int = DEFAULT_WINDOW,
) -> Conversation:
    """Dial `peer` at `address` ("host:port") and keep the channel up until it is closed.

    peer: the one party and role that may answer. run: which run this is, empty to take the
    listener's. incarnation: 32 hex digits, new in every process; drawn here if not given.

    Raises:
        ChannelError: nobody answered within `deadline_s`; tried all the while.
        IdentityError: one of the certificates, names or roles is not what the other side expects.
        PeerError: the listener refused for another reason, or broke the protocol.
    """
    _check_own(identity)
    dialler = _Dialler(
        address,
        identity=identity,
        peer=peer,
        run=run,
        incarnation=incarnation or secrets.token_hex(16),
        window=window,
    )
    try:
        dialler.wait_until_up(deadline_s)
    except BaseException:
        dialler.conversation.close(reason="the dialler gave up")
        raise
    return dialler.conversation


class _Dialler:
    """Redials for one conversation, in a loop and thread of its own."""

    def __init__(
        self,
        address: str,
        *,
        identity: Identity,
        peer: PartyName,
        run: str,
        incarnation: str,
        window: int,
    ) -> None:
        self._address = address
        self._identity = identity
        self._peer = peer
        self._incarnation = incarnation
        self._listener = ""
        self._up = asyncio.Event()
        self._why = "no answer yet"
        self._pumped = False
        self._loop = LoopThread(f"channel to {peer.dns}")
        self.conversation = Conversation(
            peer, run=run, window=window, loop=self._loop, on_close=self._closed
        )
        self._loop.start(self._keep_up(), on_failure=self._failed)

    def wait_until_up(self, deadline_s: float) -> None:
        """Block until the first handshake is done. Raises as `connect` does."""
        try:
            self._loop.run(self._up.wait(), timeout_s=deadline_s)
        except ChannelError:
            raise ChannelError(
                f"{self._peer.dns} did not answer at {self._address} within {deadline_s:g} s: "
                f"{self._why}"
            ) from None
        self.conversation.mailbox.check()

    def _closed(self, reason: str | None) -> None:
        del reason
        self._loop.close()

    def _failed(self, error: BaseException) -> None:
        """What nobody foresaw must not leave the engine waiting."""
        broke = ChannelError(f"the channel to {self._peer.dns} broke: {error!r}")
        self.conversation.mailbox.fail(broke)
        self._up.set()

    async def _keep_up(self) -> None:
        """Dial, pump, redial, until the conversation is over. Its failures go into the mailbox."""
        mailbox = self.conversation.mailbox
        pause_s = _FIRST_PAUSE_S
        while True:
            self._pumped = False
            try:
                await self._dial()
            except SplitLearnError as error:
                mailbox.fail(error)
            except LinkLost as lost:
                self._why = str(lost)
            mailbox.detach(self._why)
            if mailbox.over:
                break
            if self._pumped:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        self._up.set()

    async def _dial(self) -> None:
        """One link, from dialling to its end: returns, or raises LinkLost or our own errors."""
        with contextlib.suppress(SplitLearnError):
            # Half written or not, what we hold is still good until it expires.
            self._identity = self._identity.reload()
        _check_own(self._identity)
        frames = self._open(FRAMES)
        try:
            welcome = await self._shake_hands(frames)
            await self._pump(frames, welcome)
        finally:
            await frames.close()

    async def _pump(self, frames: Connection, welcome: Welcome) -> None:
        conversation = self.conversation
        link = Link(conversation.mailbox, frames=frames, tally=conversation.tally)
        conversation.link = link
        control = self._open(CONTROL)
        renewal = asyncio.create_task(self._watch_renewal())
        running = asyncio.create_task(link.run(self._attach(control, welcome)))
        self._pumped = True
        self._up.set()
        try:
            await asyncio.wait({renewal, running}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise LinkLost("our certificate was renewed")
            running.result()
        finally:
            conversation.link = None
            renewal.cancel()
            running.cancel()
            await asyncio.gather(renewal, running, return_exceptions=True)
            await control.close()

    async def _shake_hands(self, frames: Connection) -> Welcome:
        """HELLO and ACK; the mailbox is then attached at the listener's place."""
        mailbox = self.conversation.mailbox
        hello = Hello(
            federation=self._identity.name.federation,
            party=self._identity.name.party,
            role=self._identity.name.role,
            expects=self._peer.uri,
            run=self.conversation.run,
            incarnation=self._incarnation,
            listener=self._listener,
            received=mailbox.received,
            window=mailbox.window,
            nonce=secrets.token_bytes(16),
        )
        sent = handshake.encode_hello(hello)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                self.conversation.tally.sent += len(sent)
                await frames.write(sent)
                answer = await frames.read()
        except TimeoutError:
            raise LinkLost(f"no answer to our HELLO within {HANDSHAKE_S:g} s") from None
        except LinkLost as lost:
            await self._suspect(lost)
            raise
        if answer is None:
            raise LinkLost("the listener ended the stream before its ACK")
        self.conversation.tally.received += len(answer)
        ack = handshake.decode_ack(answer)
        if isinstance(ack, Refused):
            said = f"{self._peer.dns} refused us and says: {quoted(ack.sentence)}"
            raise _refusal(ack.code, said)
        welcome = self._judge(ack, hello=hello, sent=sent)
        if self._listener and welcome.incarnation != self._listener:
            mailbox.restart()
        self._listener = welcome.incarnation
        mailbox.attach(received=welcome.received, window=welcome.window)
        return welcome

    def _judge(self, signed: Signed, *, hello: Hello, sent: bytes) -> Welcome:
        """The Welcome, if whom we dialled has signed it for this HELLO. Raises IdentityError."""
        welcome = handshake.decode_body(signed.body)
        self.conversation.authorised = authorise(
            welcome.certificate,
            ca=self._identity.ca,
            expected=self._peer,
            federation=self._peer.federation,
            roles=frozenset({self._peer.role}),
            denied=self._identity.denied,
            now=datetime.now(UTC),
        )
        verify_proof(
            welcome.certificate,
            message=handshake.signed_message(sent, body=signed.body),
            signature=signed.signature,
        )
        claimed = (welcome.federation, welcome.party, welcome.role)
        if claimed != (self._peer.federation, self._peer.party, self._peer.role):
            raise IdentityError(
                f"the listener calls itself {claimed[2]} {claimed[1]} of {claimed[0]}; expected "
                f"{self._peer.uri}, as its certificate says"
            )
        if hello.run and welcome.run != hello.run:
            raise PeerError(f"{self._peer.dns} answered for run {welcome.run!r}, not {hello.run!r}")
        self.conversation.run = welcome.run
        return welcome

    async def _attach(self, control: Connection, welcome: Welcome) -> Connection:
        attach = handshake.encode_attach(handshake.Attach(welcome.link))
        self.conversation.tally.sent += len(attach)
        await control.write(attach)
        return control

    async def _suspect(self, lost: LinkLost) -> None:
        """gRPC says only that it could not connect. Raises IdentityError if a certificate is why."""
        if "refused" in str(lost).lower():
            return
        try:
            await asyncio.to_thread(
                probe,
                self._address,
                identity=self._identity,
                expected=self._peer,
                now=datetime.now(UTC),
                deadline_s=_PROBE_S,
            )
        except ChannelError:
            return

    async def _watch_renewal(self) -> None:
        """Return once the folder holds another certificate than the one this link was made with."""
        used = self._identity.fingerprint
        while True:
            await asyncio.sleep(_RENEWAL_LOOK_S)
            with contextlib.suppress(SplitLearnError):
                if self._identity.reload().fingerprint != used:
                    return

    def _open(self, method: str) -> Connection:
        return Connection(self._address, identity=self._identity, peer=self._peer, method=method)


def _refusal(code: str, sentence: str) -> Exception:
    """The exception for a refusal: only "busy" is worth another try."""
    if code == "busy":
        return LinkLost(sentence)
    if code in _REFUSED_IDENTITY:
        return IdentityError(sentence)
    return PeerError(sentence)


def _check_own(identity: Identity) -> None:
    """Raise IdentityError if our own certificate is not valid now: no peer would take it."""
    whose = f"our own certificate in {identity.folder}"
    check_dates(identity.certificate, whose=whose, now=datetime.now(UTC))
