"""One question to a registrar and its answer: HTTP over TLS, bounded in bytes and in time.

Both ends read through `BoundedReader`, which stops at a deadline however slowly bytes drip, and at a
number of bytes whatever a header claims. The messages are strict msgspec structs in JSON.
"""

import http.client
import importlib.metadata
import io
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from splitlearn.errors import ChannelError, IdentityError, WireError
from splitlearn.identity import tls
from splitlearn.identity.certificates import Request
from splitlearn.identity.files import MAX_FILE_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = [
    "DEADLINE_S",
    "MAX_ANSWER_BYTES",
    "MAX_ASK_BYTES",
    "BoundedReader",
    "Client",
    "Grant",
    "Join",
    "Now",
    "Refusal",
    "Renew",
    "decode",
    "proof_fields",
    "send",
    "software_version",
]

# A join takes about 0.1 s; a registrar that needs longer than this is not there.
DEADLINE_S = 5.0
# A request for a certificate with everything around it takes about 1.5 KiB.
MAX_ASK_BYTES = 16 * 2**10
# A grant carries the deny-list; headers and certificate fit into the rest.
MAX_ANSWER_BYTES = MAX_FILE_BYTES + 64 * 2**10

_Pem = Annotated[str, msgspec.Meta(max_length=8_192)]
_Uri = Annotated[str, msgspec.Meta(max_length=160)]
_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Proof = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
_T = TypeVar("_T")


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/join. name: URI that the asker already bears, or None at its first join."""

    id: Annotated[str, msgspec.Meta(max_length=16)]
    secret: Annotated[str, msgspec.Meta(max_length=32)]
    csr: _Pem
    log_public: _Key
    log_proof: _Proof
    name: _Uri | None

    def __repr__(self) -> str:
        return f"Join(id={self.id!r}, name={self.name!r})"


class Renew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/renew, over a connection that showed the certificate in use."""

    csr: _Pem
    log_public: _Key
    log_proof: _Proof


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer to join and renew: the certificate, and the deny-list as the CA signed it."""

    certificate: _Pem
    denied: msgspec.Raw


class Now(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GET /v1/time: seconds since 1970 at the registrar, and the version of its software."""

    time: float
    version: Annotated[str, msgspec.Meta(max_length=64)]


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer to anything that was not granted: one sentence."""

    sentence: Annotated[str, msgspec.Meta(max_length=600)]


@dataclass(frozen=True)
class Client:
    """Where and how to ask. server_name: DNS name to verify, or None where the context does not.

    whom: how a sentence calls the other side.
    """

    address: str
    context: ssl.SSLContext
    server_name: str | None
    whom: str = "registrar"

    def get(self, path: str, *, deadline_s: float = DEADLINE_S) -> bytes:
        """Body of the answer. Raises ChannelError, or IdentityError with the registrar's reason."""
        return self._ask("GET", path, body=b"", deadline_s=deadline_s)

    def post(self, path: str, body: Join | Renew, *, deadline_s: float = DEADLINE_S) -> bytes:
        """Body of the answer. Raises ChannelError, or IdentityError with the registrar's reason."""
        return self._ask("POST", path, body=msgspec.json.encode(body), deadline_s=deadline_s)

    def _ask(self, method: str, path: str, *, body: bytes, deadline_s: float) -> bytes:
        deadline = time.monotonic() + deadline_s
        head = (
            f"{method} {path} HTTP/1.0\r\nhost: {self.server_name or 'registrar'}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        with tls.open_tls(
            self.address,
            context=self.context,
            server_name=self.server_name,
            deadline=deadline,
            whom=self.whom,
        ) as connection:
            try:
                send(connection, head.encode("ascii") + body, deadline=deadline)
                status, answer = _read_answer(connection, deadline=deadline)
            except OSError as error:
                raise tls.explain(error, whom=self.whom, address=self.address) from None
            except http.client.HTTPException:
                raise ChannelError(f"{self.address} answers like no {self.whom} of ours") from None
        if status != http.HTTPStatus.OK:
            raise IdentityError(f"{self.whom} at {self.address} says: {_sentence(answer)}")
        return answer


class BoundedReader(io.RawIOBase):
    """Raw reader over a connection that ends at `deadline` (time.monotonic) or `limit_bytes`."""

    def __init__(self, connection: ssl.SSLSocket, *, deadline: float, limit_bytes: int) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline
        self._left_bytes = limit_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill what is there. Raises TimeoutError past the deadline; past the limit it is the end."""
        _limit_wait(self._connection, deadline=self._deadline)
        view = memoryview(buffer)[: self._left_bytes]
        if not view:
            return 0
        count = self._connection.recv_into(view)
        self._left_bytes -= count
        return count


def send(connection: ssl.SSLSocket, data: bytes, *, deadline: float) -> None:
    """Send all of `data` before `deadline` (time.monotonic). Raises TimeoutError or OSError."""
    view = memoryview(data)
    while view:
        _limit_wait(connection, deadline=deadline)
        view = view[connection.send(view) :]


def decode(data: bytes, *, type: type[_T], whose: str) -> _T:  # noqa: A002
    """Parse one message. Raises WireError."""
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{whose} is not one of ours: {error}") from None


def proof_fields(request: Request) -> tuple[str, bytes, bytes]:
    """A request's parts as `Join` and `Renew` carry them."""
    return request.csr.decode("ascii"), request.log_public, request.log_proof


def software_version() -> str:
    """Version of this software as installed."""
    try:
        return importlib.metadata.version("splitlearn")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class _Readable:
    """What http.client.HTTPResponse needs of a socket."""

    def __init__(self, reader: io.BufferedReader) -> None:
        self._reader = reader

    def makefile(self, _mode: str) -> io.BufferedReader:
        return self._reader


def _read_answer(connection: ssl.SSLSocket, *, deadline: float) -> tuple[int, bytes]:
    reader = BoundedReader(connection, deadline=deadline, limit_bytes=MAX_ANSWER_BYTES)
    response = http.client.HTTPResponse(_Readable(io.BufferedReader(reader)))  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


def _limit_wait(connection: ssl.SSLSocket, *, deadline: float) -> None:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _sentence(answer: bytes) -> str:
    """The registrar's sentence, without anything that could move a cursor on a terminal."""
    try:
        text = msgspec.json.decode(answer, type=Refusal).sentence
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "no, without a reason"
    return "".join(c if c.isprintable() else "?" for c in text)
