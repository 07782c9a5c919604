"""Two-way streams of byte strings over gRPC and mutual TLS: the only file that knows grpc.

Opens them, serves them, turns every way in which one can end into `LinkLost` or the end of the
stream. Whom a certificate names, and what the bytes mean, is judged elsewhere.
"""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol, cast

from splitlearn.errors import ManifestError, WireError
from splitlearn.identity import Identity, PartyName
from splitlearn.wire.limits import CHUNK_BYTES

# gRPC's C library reads this when it is loaded, and would write lines of its own to stderr; ours say
# the same and what to do. Whoever sets it sees them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

# A handler that ends while one of its writes is under way is how a link is dropped, not an error.
logging.getLogger("grpc._cython.cygrpc").addFilter(
    lambda record: not record.getMessage().startswith("ExecuteBatchError")
)

__all__ = [
    "CONTROL",
    "FRAMES",
    "Connection",
    "LinkLost",
    "Server",
    "ServerStream",
    "Stream",
]

# The two methods; each travels on a connection of its own.
FRAMES = "Frames"
CONTROL = "Control"

# One dialled party needs two streams; this leaves room for a few parties and for strangers who are
# still being turned away.
_MAX_STREAMS = 64

# The longest single message: a chunk. gRPC refuses a longer one before it is in memory.
_MAX_MESSAGE_BYTES = CHUNK_BYTES

_OPTIONS: list[tuple[str, str | int]] = [
    # A dead link is noticed within 5 + 3 s; without this it was not noticed in 30 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]
_SERVER_OPTIONS: list[tuple[str, str | int]] = [
    *_OPTIONS,
    # Or gRPC answers the dialler's keepalive with "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    # A port that is taken is an error, not shared.
    ("grpc.so_reuseport", 0),
]
_CLIENT_OPTIONS: list[tuple[str, str | int]] = [
    *_OPTIONS,
    # A connection of its own for each Connection: control must not queue behind frames.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # Parties dial each other, not through a proxy that some variable names.
    ("grpc.enable_http_proxy", 0),
]


class LinkLost(Exception):
    """A stream ended without its peer having said so. The sentence says what the library saw."""


class Stream(Protocol):
    """One two-way stream. `read` and `write` may be awaited at the same time, each once at a time."""

    async def read(self) -> bytes | None:
        """The next message, None at the peer's end of stream. LinkLost if it broke."""
        ...

    async def write(self, message: bytes) -> None:
        """Hand one message to gRPC; waits for its flow control. LinkLost if the stream broke."""
        ...


class Connection:
    """One TLS connection to a listener, and one stream on it. Nothing is reused for another try."""

    def __init__(self, address: str, *, identity: Identity, peer: PartyName, method: str) -> None:
        credentials = grpc.ssl_channel_credentials(
            identity.ca_pem, identity.key_pem, identity.chain_pem
        )
        options = [*_CLIENT_OPTIONS, ("grpc.ssl_target_name_override", peer.dns)]
        self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] = self._channel.stream_stream(
            _path(method)
        )()

    async def read(self) -> bytes | None:
        with _as_link_lost("the listener cancelled the stream"):
            message = await self._call.read()
        return message if isinstance(message, bytes) else None

    async def write(self, message: bytes) -> None:
        if self._call.done():
            # Its status knows why; a write would only say that it is too late.
            raise LinkLost(await self._call.details() or "the listener ended the stream")
        with _as_link_lost("the listener cancelled the stream"):
            await self._call.write(message)

    async def close(self) -> None:
        """End the stream and the connection, whatever state they are in."""
        self._call.cancel()
        await self._channel.close()


class ServerStream:
    """A stream that a dialler opened; it ends when its handler returns."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        facts = cast(Mapping[str, list[bytes]], context.auth_context())
        self.tls = facts.get("ssl_tls_version", [b"none"])[0].decode("ascii", "replace")
        self._pem = facts.get("x509_pem_cert", [b""])[0]
        self.address = context.peer()

    def certificate_der(self) -> bytes:
        """The dialler's certificate, with which TLS authenticated it. WireError if there is none."""
        try:
            return ssl.PEM_cert_to_DER_cert(self._pem.decode("ascii"))
        except ValueError:
            raise WireError(f"{self.address} dialled without a certificate") from None

    async def read(self) -> bytes | None:
        with _as_link_lost("the dialler is gone"):
            # The library's stub leaves the end-of-stream mark out.
            message: object = await self._context.read()
        return message if isinstance(message, bytes) else None

    async def write(self, message: bytes) -> None:
        with _as_link_lost("the dialler is gone"):
            await self._context.write(message)


class Server:
    """A port that serves both methods. Every TLS handshake asks `identity` for the certificate."""

    def __init__(
        self,
        address: str,
        *,
        identity: Callable[[], Identity],
        handlers: Mapping[str, Callable[[ServerStream], Awaitable[None]]],
    ) -> None:
        """Raises ManifestError if `address` ("host:port", port 0 for any free one) cannot be had."""

        def configuration() -> grpc.ServerCertificateConfiguration:
            current = identity()
            return grpc.ssl_server_certificate_configuration(
                [(current.key_pem, current.chain_pem)], current.ca_pem
            )

        credentials = grpc.dynamic_ssl_server_credentials(
            configuration(), configuration, require_client_authentication=True
        )
        self._server = grpc.aio.server(
            options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS
        )
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            method: grpc.stream_stream_rpc_method_handler(_behaviour(handler))
            for method, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, methods),)
        )
        try:
            self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise ManifestError(
                f"cannot listen on {address}: the port is taken or the host is not one of this "
                "machine's; choose another address to listen on"
            )

    async def start(self) -> None:
        """Begin to accept."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop accepting and cancel the handlers that still run."""
        await self._server.stop(0)


_SERVICE = "splitlearn.v1"


def _path(method: str) -> str:
    return f"/{_SERVICE}/{method}"


def _behaviour(
    handler: Callable[[ServerStream], Awaitable[None]],
) -> Callable[[object, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[None]]:
    async def behave(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await handler(ServerStream(context))

    return behave


@contextlib.contextmanager
def _as_link_lost(gone: str) -> Iterator[None]:
    """Turn what gRPC raises into LinkLost; our own task's cancelling stays what it is."""
    try:
        yield
    except asyncio.CancelledError:
        # gRPC raises the same when only the stream was cancelled.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise LinkLost(gone) from None
    except grpc.aio.AioRpcError as error:
        raise LinkLost(error.details() or error.code().name) from None
    except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
        raise LinkLost(str(error) or type(error).__name__) from None
