import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from splitlearn.identity import Identity, exchange, serving, tls
from splitlearn.roles import Role
from tests.federation import make_identity


class Echo:
    """Answers with what it was asked; faults on demand."""

    def __init__(self, identity: Identity) -> None:
        self.context = tls.server_context(ca_pem=identity.ca_pem, folder=identity.folder)
        self.identity = identity
        self.faults: list[str] = []
        self.faulted = threading.Event()
        self.asked: list[str] = []

    def answer(
        self, method: str, path: str, *, body: bytes, certificate: bytes | None
    ) -> serving.Answer:
        self.asked.append(path)
        if path == "/fault":
            raise ZeroDivisionError
        shown = b"none" if certificate is None else b"shown"
        answer = b" ".join((method.encode(), path.encode(), body, shown))
        return serving.Answer(status=HTTPStatus.OK, body=answer)

    def fault(self, kind: str) -> None:
        self.faults.append(kind)
        self.faulted.set()


@pytest.fixture
def echo(tmp_path: Path) -> Echo:
    return Echo(make_identity(tmp_path, "bank", Role.REGISTRAR))


@pytest.fixture
def address(echo: Echo) -> Iterator[tuple[str, int]]:
    server = serving.Server(("127.0.0.1", 0), service=echo)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield ("127.0.0.1", server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


def opened(
    address: tuple[str, int], echo: Echo, *, folder: Path | None = None
) -> http.client.HTTPSConnection:
    context = tls.client_context(ca_pem=None, folder=folder)
    return http.client.HTTPSConnection(*address, context=context, timeout=5)


def asked(
    connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    connection.request(method, path, body)
    with connection.getresponse() as response:
        status, answer = response.status, response.read()
    connection.close()
    return status, answer


def test_any_http_client_gets_its_answer(address: tuple[str, int], echo: Echo) -> None:
    assert asked(opened(address, echo), "GET", "/a") == (200, b"GET /a  none")
    assert asked(opened(address, echo), "POST", "/b", b"x") == (200, b"POST /b x none")


def test_a_certificate_that_was_shown_reaches_the_service(
    address: tuple[str, int], echo: Echo
) -> None:
    connection = opened(address, echo, folder=echo.identity.folder)
    assert asked(connection, "GET", "/a") == (200, b"GET /a  shown")


def test_a_certificate_of_another_ca_gets_no_answer(
    address: tuple[str, int], echo: Echo, tmp_path: Path
) -> None:
    stranger = make_identity(tmp_path / "other", "bank", Role.REGISTRAR)
    with (
        closing(opened(address, echo, folder=stranger.folder)) as connection,
        pytest.raises(OSError, match=r"(?i)unknown ca|EOF|reset|broken pipe"),
    ):
        asked(connection, "GET", "/a")
    assert echo.asked == []


@pytest.mark.parametrize("length", ["-1", "x", "²", str(exchange.MAX_ASK_BYTES + 1), "9" * 5000])
def test_a_body_over_the_limit_is_refused_by_its_claim(
    address: tuple[str, int], echo: Echo, length: str
) -> None:
    connection = opened(address, echo)
    connection.putrequest("POST", "/a")
    connection.putheader("content-length", length.encode())
    connection.endheaders()
    with connection.getresponse() as response:
        assert response.status in {400, 413, 431}
        assert b"sentence" in response.read()
    connection.close()


def test_a_body_shorter_than_its_claim_is_refused(address: tuple[str, int], echo: Echo) -> None:
    context = tls.client_context(ca_pem=None)
    with (
        socket.create_connection(address, timeout=5) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"POST /a HTTP/1.0\r\ncontent-length: 5\r\n\r\nab")
        # The end of what TLS carries: the server reads on and finds nothing more.
        connection.setblocking(False)
        with suppress(OSError):
            connection.unwrap()
    assert echo.asked == []
    assert asked(opened(address, echo), "GET", "/a")[0] == 200


def test_an_unknown_method_or_a_line_that_is_no_http_is_answered_in_json(
    address: tuple[str, int], echo: Echo
) -> None:
    status, answer = asked(opened(address, echo), "DELETE", "/a")
    assert status == 501
    assert answer.startswith(b'{"sentence":')


def test_the_software_behind_is_not_named(address: tuple[str, int], echo: Echo) -> None:
    connection = opened(address, echo)
    connection.request("GET", "/a")
    with connection.getresponse() as response:
        assert response.getheader("server") == "splitlearn"
        response.read()
    connection.close()


def test_a_client_that_says_nothing_holds_up_nobody(address: tuple[str, int], echo: Echo) -> None:
    with socket.create_connection(address), socket.create_connection(address):
        assert asked(opened(address, echo), "GET", "/a")[0] == 200


def test_a_client_that_says_nothing_is_let_go_at_the_deadline(
    address: tuple[str, int], echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "DEADLINE_S", 0.1)
    with socket.create_connection(address, timeout=5) as silent:
        assert silent.recv(1) == b""
    context = tls.client_context(ca_pem=None)
    with (
        socket.create_connection(address, timeout=5) as plain,
        context.wrap_socket(plain) as shaken,
    ):
        shaken.sendall(b"GET /a HTTP/1.0\r\n")
        assert shaken.recv(1) == b""


def test_too_many_connections_are_closed_and_the_slots_come_back(
    address: tuple[str, int], echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        for _ in range(serving.MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(address, timeout=5))
        extra = stack.enter_context(socket.create_connection(address, timeout=5))
        assert extra.recv(1) == b""
    end = time.monotonic() + 60
    while closed_at_once(address):
        assert time.monotonic() < end
    assert asked(opened(address, echo), "GET", "/a")[0] == 200


def closed_at_once(address: tuple[str, int]) -> bool:
    """Whether the server has no slot; a connection that it keeps is silent, for we are."""
    with socket.create_connection(address, timeout=0.2) as trial:
        try:
            return trial.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


def test_where_no_thread_is_to_be_had_the_connection_is_closed(
    address: tuple[str, int], echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with socket.create_connection(address, timeout=5) as closed:
            assert closed.recv(1) == b""
    assert asked(opened(address, echo), "GET", "/a")[0] == 200


def test_a_fault_in_one_connection_is_told_and_the_next_is_served(
    address: tuple[str, int], echo: Echo
) -> None:
    with (
        closing(opened(address, echo)) as connection,
        pytest.raises((OSError, http.client.HTTPException)),
    ):
        asked(connection, "GET", "/fault")
    assert echo.faulted.wait(5)
    assert echo.faults == ["ZeroDivisionError"]
    assert asked(opened(address, echo), "GET", "/a")[0] == 200


def test_ipv6_is_served_where_there_is_any(echo: Echo) -> None:
    try:
        server = serving.Server(("::1", 0), service=echo)
    except OSError:
        return  # this machine has no IPv6
    with server:
        assert server.address_family == socket.AF_INET6


def test_tls_1_2_gets_no_answer(address: tuple[str, int], echo: Echo) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address, timeout=5) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
