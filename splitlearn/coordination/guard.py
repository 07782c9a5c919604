"""What stands before the SuperLink: who may ask it what. Pure ASGI; knows nothing of Flower but paths.

Flower serves its three APIs on one port, and one of them starts programs on every node without asking
who calls. Here they are two doors. `FleetDoor` is the one that others reach: over mutual TLS, for the
Fleet API and a question for health, to generators of our federation that nobody has denied, each with
the key in its certificate. `LocalDoor` listens on loopback only, for processes of our own user.
"""

import asyncio
import binascii
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from splitlearn.coordination import loopback
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.errors import IdentityError, PeerError
from splitlearn.identity import PartyName, authorise, due_at
from splitlearn.identity.certificates import public_key_pem, read_der
from splitlearn.identity.exchange import Refusal
from splitlearn.roles import Role

__all__ = [
    "CERTIFICATE",
    "HEALTH_PATH",
    "MAX_FLEET_BYTES",
    "MAX_LOCAL_BYTES",
    "Arrivals",
    "FleetDoor",
    "Health",
    "LocalDoor",
    "Member",
]

# A report has at most 64 KiB and Flower adds a few names; nothing else that a node says is as long.
MAX_FLEET_BYTES = 2**20
# A FAB may have 10 MB.
MAX_LOCAL_BYTES = 16 * 2**20
# Seconds. A body of a megabyte over a line of 1 Mbit/s takes 8.
BODY_S = 30.0
FLEET_PATH = "/v1/fleet/"
ACTIVATE_PATH = "/v1/fleet/activate-node"
HEALTH_PATH = "/health"
# As long as whoever asked reads; see `exchange.Refusal`.
_MAX_SENTENCE = 600
# Where the protocol puts the peer's certificate (DER) for us, in scope["state"].
CERTIFICATE = "splitlearn.certificate"
# Flower's header with the node's key: base64 of its PEM.
NODE_KEY_HEADER = b"flwr-public-key"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Member:
    """A generator that has proved who it is. key: PEM of its public key, as Flower knows a node."""

    name: PartyName
    key: bytes


class Arrivals(Protocol):
    """Told before a node is activated; blocks, on a thread of its own."""

    def __call__(self, member: Member, /) -> None:
        """Have the SuperLink know the node. Raises PeerError where it may not come in."""


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node is told that asks how things are. time: seconds since 1970 by our clock."""

    time: float
    party: str


class FleetDoor:
    """The Fleet API for generators of our federation, and nothing else for nobody else.

    Who is refused is told why in one sentence, with status 401: Flower's node ends on it.
    """

    def __init__(
        self,
        app: App,
        *,
        fresh: FreshIdentity,
        arrive: Arrivals,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._app = app
        self._fresh = fresh
        self._arrive = arrive
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _close(scope, send)
            return
        try:
            member, parting = self._judge(scope)
            if parting:
                send = _saying_goodbye(send)
            if scope["path"] == HEALTH_PATH:
                await _answer(send, 200, msgspec.json.encode(self._health()))
                return
            if not scope["path"].startswith(FLEET_PATH):
                await _refuse(send, 404, "there is nothing here for you")
                return
            self._check_key(scope, member=member)
            replay = await _whole(receive, scope=scope, limit_bytes=MAX_FLEET_BYTES)
            if scope["path"] == ACTIVATE_PATH:
                await asyncio.to_thread(self._arrive, member)
        except _TooLong as error:
            await _refuse(_saying_goodbye(send), 413, str(error))
            return
        except PeerError as error:
            self._report(f"refused: {error}")
            await _refuse(_saying_goodbye(send), 401, str(error))
            return
        await self._app(scope, replay, send)

    def _judge(self, scope: Scope) -> tuple[Member, bool]:
        """Who asks, and whether this connection has to end because a newer certificate is due."""
        identity, denied = self._fresh.now()
        der = scope.get("state", {}).get(CERTIFICATE)
        if not der:
            raise IdentityError("a node has to show its certificate; it showed none")
        now = datetime.now(UTC)
        peer = authorise(
            der,
            ca=identity.ca,
            expected=None,
            federation=identity.name.federation,
            roles=frozenset({Role.GENERATOR}),
            denied=denied,
            now=now,
        )
        certificate = read_der(der, whose="peer's certificate")
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        # A TLS connection lives on with the certificate that it began with.
        parting = now > begins + (ends - begins) * 2 / 3 or now > due_at(identity)
        return Member(name=peer.name, key=public_key_pem(certificate)), parting

    def _check_key(self, scope: Scope, *, member: Member) -> None:
        """A node signs with the key that its certificate certifies: one party, one node."""
        claimed = [value for name, value in scope["headers"] if name == NODE_KEY_HEADER]
        try:
            # Of two, Flower might read the other one.
            if len(claimed) == 1 and b64decode(claimed[0], validate=True) == member.key:
                return
        except (binascii.Error, ValueError):
            pass
        raise IdentityError(f"{member.name.uri} speaks for a node with another key than its own")

    def _health(self) -> Health:
        return Health(time=time.time(), party=self._fresh.now()[0].name.uri)


class LocalDoor:
    """All of Flower's APIs, on loopback, for this machine's own user.

    owner: whether the process behind a connection is one of ours. A browser is, so what a page of
    somebody else's makes it ask (with an Origin, or under another Host) is refused.
    """

    def __init__(
        self,
        app: App,
        *,
        permitted: Callable[[tuple[str, int], tuple[str, int]], bool] = (
            lambda peer, here: loopback.permitted(peer, here=here)
        ),
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._app = app
        self._permitted = permitted
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await _close(scope, send)
            return
        peer, here = scope.get("client"), scope.get("server")
        if not peer or not here or not self._permitted(tuple(peer), tuple(here)):
            self._report("refused: another user of this machine asked for the Control API")
            await _refuse(_saying_goodbye(send), 403, "this is for another user of this machine")
            return
        if not _from_a_program(scope["headers"], here=tuple(here)):
            self._report("refused: a web page asked for the Control API")
            await _refuse(_saying_goodbye(send), 403, "this is not for browsers")
            return
        try:
            replay = await _whole(receive, scope=scope, limit_bytes=MAX_LOCAL_BYTES)
        except _TooLong as error:
            await _refuse(_saying_goodbye(send), 413, str(error))
            return
        await self._app(scope, replay, send)


class _TooLong(Exception):
    """A body that is too long, or too slow in coming."""


def _from_a_program(headers: Iterable[tuple[bytes, bytes]], *, here: tuple[str, int]) -> bool:
    given = dict(headers)
    host, port = here
    named = {f"{host}:{port}".encode(), f"localhost:{port}".encode()}
    return b"origin" not in given and given.get(b"host") in named


async def _whole(receive: Receive, *, scope: Scope, limit_bytes: int) -> Receive:
    """Read the body before anybody works on it; return what hands it over. Raises _TooLong."""
    for name, value in scope["headers"]:
        if name == b"content-length" and not (value.isdigit() and int(value[:20]) <= limit_bytes):
            raise _TooLong(f"a body has at most {limit_bytes} bytes here")
    body = bytearray()
    ended: Message | None = None
    try:
        async with asyncio.timeout(BODY_S):
            while ended is None:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > limit_bytes:
                    raise _TooLong(f"a body has at most {limit_bytes} bytes here")
                if message["type"] != "http.request" or not message.get("more_body", False):
                    ended = message
    except TimeoutError:
        raise _TooLong(f"a body has to be here within {BODY_S:.0f} s") from None
    first: list[Message] = [
        {"type": "http.request", "body": bytes(body), "more_body": False}
        if ended["type"] == "http.request"
        else ended
    ]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _saying_goodbye(send: Send) -> Send:
    """As `send`, and the connection ends after this answer."""

    async def parting(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return parting


async def _refuse(send: Send, status: int, sentence: str) -> None:
    await _answer(send, status, msgspec.json.encode(Refusal(sentence=sentence[:_MAX_SENTENCE])))


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _close(scope: Scope, send: Send) -> None:
    """Neither door speaks anything but HTTP."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
