import io
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest

from splitlearn.errors import ChannelError, IdentityError, WireError
from splitlearn.identity import Identity, exchange, tls
from splitlearn.identity.certificates import make_request
from splitlearn.identity.party import Keys
from splitlearn.roles import Role
from tests.federation import make_identity


@pytest.fixture
def bank(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "bank", Role.REGISTRAR)


@contextmanager
def answering(bank: Identity, *pieces: bytes, stays: bool = False) -> Iterator[exchange.Client]:
    """A registrar that says just these bytes to one client, and then falls silent or goes."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = tls.server_context(ca_pem=bank.ca_pem, folder=bank.folder)

    def serve() -> None:
        with suppress(OSError):
            plain, _ = listener.accept()
            with plain, context.wrap_socket(plain, server_side=True) as connection:
                connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)
                if stays:
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield exchange.Client(
        address=f"127.0.0.1:{listener.getsockname()[1]}",
        context=tls.client_context(ca_pem=bank.ca_pem),
        server_name=bank.name.dns,
    )
    listener.close()
    thread.join()


def test_an_answer_may_come_in_pieces(bank: Identity) -> None:
    with answering(bank, b"HTTP/1.0 200 OK\r\nconte", b"nt-length: 2\r\n\r\no", b"k") as client:
        assert client.get("/") == b"ok"


def test_a_refusal_is_an_identity_error_with_the_registrars_sentence(bank: Identity) -> None:
    head = b"HTTP/1.0 403 no\r\n\r\n"
    body = msgspec.json.encode(exchange.Refusal(sentence="no\x1b[2J more"))
    with (
        answering(bank, head + body) as client,
        pytest.raises(IdentityError, match=r"says: no\?\[2J more"),
    ):
        client.get("/")


@pytest.mark.parametrize("body", [b"", b"\xff", b"<html>", b'{"sentence":1}'])
def test_a_refusal_without_a_sentence_is_one_all_the_same(bank: Identity, body: bytes) -> None:
    with (
        answering(bank, b"HTTP/1.0 500 no\r\n\r\n" + body) as client,
        pytest.raises(IdentityError, match=r"no, without a reason"),
    ):
        client.get("/")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        b"HTTP/1.0 200 OK\r\n" + b"x: y\r\n" * 200,
        b"HTTP/1.0 200 " + b"x" * 70_000,
    ],
    ids=["nothing", "no http", "cut short", "too many headers", "endless line"],
)
def test_what_is_no_answer_is_a_channel_error(bank: Identity, answer: bytes) -> None:
    with (
        answering(bank, answer) as client,
        pytest.raises(ChannelError, match=r"like no registrar of ours|closed the connection"),
    ):
        client.get("/")


def test_a_registrar_that_falls_silent_is_left_at_the_deadline(bank: Identity) -> None:
    with (
        answering(bank, b"HTTP/1.0 200 OK\r\n", stays=True) as client,
        pytest.raises(ChannelError, match=r"did not answer in time"),
    ):
        client.get("/", deadline_s=0.3)


def test_an_answer_is_cut_at_the_limit(bank: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_ANSWER_BYTES", 100)
    with answering(bank, b"HTTP/1.0 200 OK\r\n\r\n", bytes(1000)) as client:
        assert len(client.get("/")) == 100 - len(b"HTTP/1.0 200 OK\r\n\r\n")


class Dripping:
    """A connection that gives one byte at a time and takes one byte at a time."""

    def __init__(self) -> None:
        self.taken = b""

    def settimeout(self, _seconds: float) -> None:
        """Nothing here waits."""

    def recv_into(self, view: memoryview) -> int:
        view[0] = 1
        return 1

    def send(self, view: memoryview) -> int:
        self.taken += bytes(view[:1])
        return 1


def test_a_reader_stops_at_its_limit_however_much_there_is() -> None:
    reader = exchange.BoundedReader(
        cast(ssl.SSLSocket, Dripping()), deadline=time.monotonic() + 60, limit_bytes=10
    )
    assert io.BufferedReader(reader).read() == b"\1" * 10


def test_a_reader_and_a_writer_stop_at_their_deadline_however_slowly_it_drips() -> None:
    connection = Dripping()
    reader = exchange.BoundedReader(
        cast(ssl.SSLSocket, connection), deadline=time.monotonic() + 0.02, limit_bytes=1 << 40
    )
    with pytest.raises(TimeoutError):
        io.BufferedReader(reader, buffer_size=16).read()
    with pytest.raises(TimeoutError):
        exchange.send(
            cast(ssl.SSLSocket, connection), bytes(1 << 24), deadline=time.monotonic() + 0.02
        )
    assert 0 < len(connection.taken) < 1 << 24


def test_everything_is_sent_in_order() -> None:
    connection = Dripping()
    exchange.send(cast(ssl.SSLSocket, connection), b"hello", deadline=time.monotonic() + 60)
    assert connection.taken == b"hello"


def test_a_request_fits_into_its_messages_and_their_bounds(tmp_path: Path) -> None:
    keys = Keys.obtain(tmp_path)
    csr, public, proof = exchange.proof_fields(make_request(keys.certificate, log_key=keys.log))
    ask = exchange.Join(
        id="0" * 16, secret="s" * 32, csr=csr, log_public=public, log_proof=proof, name="n" * 160
    )
    data = msgspec.json.encode(ask)
    assert len(data) < exchange.MAX_ASK_BYTES
    assert exchange.decode(data, type=exchange.Join, whose="it") == ask
    assert "s" * 32 not in repr(ask)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"time":1}', b'{"time":1,"version":"1","more":1}']
)
def test_a_message_that_is_not_exactly_one_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError, match=r"it is not one of ours"):
        exchange.decode(data, type=exchange.Now, whose="it")


def test_software_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exchange.software_version() != ""

    def absent(_name: str) -> str:
        raise exchange.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", absent)
    assert exchange.software_version() == "unknown"
