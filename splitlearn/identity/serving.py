"""A small HTTPS server that cannot be held up: one question a connection, bounded in bytes and time.

A thread per connection, at most MAX_CONNECTIONS of them, each with one deadline for handshake,
question and answer together. It knows nothing of certificates' meaning; a `Service` answers.
"""

import http.server
import io
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from splitlearn.identity import exchange

__all__ = ["MAX_CONNECTIONS", "Answer", "Server", "Service"]

# More at once than a federation has parties; the rest is closed without a word.
MAX_CONNECTIONS = 32


@dataclass(frozen=True)
class Answer:
    """What goes back over the connection."""

    status: HTTPStatus
    body: bytes

    @classmethod
    def refusal(cls, sentence: str, *, status: HTTPStatus) -> "Answer":
        """An answer that gives a reason instead of what was asked."""
        return cls(status=status, body=msgspec.json.encode(exchange.Refusal(sentence[:600])))


class Service(Protocol):
    """Whoever answers. `context` is asked for anew with every connection."""

    @property
    def context(self) -> ssl.SSLContext: ...

    def answer(
        self, method: str, path: str, *, body: bytes, certificate: bytes | None
    ) -> Answer: ...

    def fault(self, kind: str) -> None:
        """One connection ended in a fault of ours, an exception of class `kind`."""


class Server(http.server.ThreadingHTTPServer):
    """Hands each connection to a thread, which shakes hands there: a slow client holds up nobody."""

    request_queue_size = 64

    def __init__(self, address: tuple[str, int], *, service: Service) -> None:
        self._service = service
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, http.server.BaseHTTPRequestHandler)

    def server_bind(self) -> None:
        """Bind without http.server's look-up of our own host name, which may hang."""
        socketserver.TCPServer.server_bind(self)

    # The base classes say Any where a socket and an address come.
    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for one connection, or close it where too many are open."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection, in its own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, read one question, answer it. A client that breaks off is not our trouble."""
        deadline = time.monotonic() + exchange.DEADLINE_S
        request.settimeout(exchange.DEADLINE_S)
        context = self._service.context
        with suppress(OSError), context.wrap_socket(request, server_side=True) as connection:
            _Handler(connection, client_address, self, service=self._service, deadline=deadline)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Tell the service instead of printing a trace, and go on serving."""
        self._service.fault(type(sys.exception()).__name__)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Reads one question within bounds and writes one answer."""

    def __init__(
        self,
        connection: ssl.SSLSocket,
        address: tuple[str, int],
        server: Server,
        *,
        service: Service,
        deadline: float,
    ) -> None:
        self._tls = connection
        self._service = service
        self._deadline = deadline
        self._out = io.BytesIO()
        super().__init__(connection, address, server)

    def setup(self) -> None:
        """Read with a bound on time and bytes instead of the base class's plain file."""
        limit_bytes = exchange.MAX_ASK_BYTES + _MAX_HEAD_BYTES
        reader = exchange.BoundedReader(self._tls, deadline=self._deadline, limit_bytes=limit_bytes)
        self.rfile = io.BufferedReader(reader)
        self.wfile = self._out

    def finish(self) -> None:
        """Send what was written, within what is left of the connection's time."""
        exchange.send(self._tls, self._out.getvalue(), deadline=self._deadline)

    def do_GET(self) -> None:
        """Answer a question without a body."""
        self._answer(b"")

    def do_POST(self) -> None:
        """Answer a question with a body, once all of it is here."""
        claimed = self.headers.get("content-length", "")
        # Nine digits at most: Python itself refuses to read a number of thousands.
        length = int(claimed) if re.fullmatch(r"[0-9]{1,9}", claimed) else -1
        if not 0 <= length <= exchange.MAX_ASK_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        body = self.rfile.read(length)
        if len(body) < length:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        self._answer(body)

    def send_error(
        self,
        code: int,
        message: str | None = None,  # noqa: ARG002
        explain: str | None = None,  # noqa: ARG002
    ) -> None:
        """Answer with a sentence in JSON, where the base class would write a page of HTML."""
        status = HTTPStatus(code)
        self._write(Answer.refusal(status.description or status.phrase, status=status))

    def version_string(self) -> str:
        """Say neither which Python this is nor which version."""
        return "splitlearn"

    def log_message(self, *_: object) -> None:
        """Print nothing: the service reports what matters; lines of HTTP do not."""

    def _answer(self, body: bytes) -> None:
        shown = self._tls.getpeercert(binary_form=True)
        answer = self._service.answer(self.command, self.path, body=body, certificate=shown)
        self._write(answer)

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self._out.write(answer.body)


# Request line and headers of our own client take 150 bytes.
_MAX_HEAD_BYTES = 4 * 2**10
