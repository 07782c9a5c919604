import gc
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.errors import ChannelError, IdentityError, ManifestError
from splitlearn.identity import Identity, tls
from splitlearn.roles import Role
from tests.federation import make_identity

NOW = datetime.now(UTC)


@contextmanager
def serving(context: ssl.SSLContext | None) -> Iterator[str]:
    """Answer one connection at the address given; None speaks no TLS."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(5)
                if context is None:
                    connection.sendall(b"SSH-2.0-nothing\r\n")
                    connection.recv(1000)
                else:
                    with context.wrap_socket(connection, server_side=True) as shaken:
                        shaken.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def of(identity: Identity) -> ssl.SSLContext:
    return tls.server_context(ca_pem=identity.ca_pem, folder=identity.folder)


def shake(address: str, *, context: ssl.SSLContext, server_name: str | None) -> str | None:
    deadline = time.monotonic() + 5
    with tls.open_tls(
        address, context=context, server_name=server_name, deadline=deadline, whom="peer"
    ) as connection:
        return connection.version()


def test_two_parties_of_one_federation_speak_tls_1_3(tmp_path: Path) -> None:
    bank = make_identity(tmp_path, "bank", Role.COMPUTE)
    with serving(of(bank)) as address:
        context = tls.client_context(ca_pem=bank.ca_pem, folder=bank.folder)
        assert shake(address, context=context, server_name=bank.name.dns) == "TLSv1.3"


@pytest.mark.parametrize(
    ("federation", "begins", "ends", "server_name", "reason"),
    [
        ("other.example", -1, 1, None, "wrong CA"),
        ("fed.example", -2, -1, None, "has expired"),
        ("fed.example", 1, 2, None, "not yet valid"),
        ("fed.example", -1, 1, "compute.lab.fed.example", "names somebody else"),
    ],
)
def test_a_certificate_that_does_not_verify_is_told_why(
    tmp_path: Path, federation: str, begins: int, ends: int, server_name: str | None, reason: str
) -> None:
    me = make_identity(tmp_path, "me", Role.TRUSTED)
    bank = make_identity(
        tmp_path,
        "bank",
        Role.COMPUTE,
        federation=federation,
        not_before=NOW + timedelta(hours=begins),
        not_after=NOW + timedelta(hours=ends),
    )
    with serving(of(bank)) as address:
        context = tls.client_context(ca_pem=me.ca_pem)
        with pytest.raises(IdentityError, match=rf"certificate of peer at {address} .*{reason}"):
            shake(address, context=context, server_name=server_name or bank.name.dns)


def test_dates_can_be_left_out_to_compare_clocks(tmp_path: Path) -> None:
    bank = make_identity(
        tmp_path,
        "bank",
        Role.COMPUTE,
        not_before=NOW - timedelta(days=2),
        not_after=NOW - timedelta(days=1),
    )
    with serving(of(bank)) as address:
        context = tls.client_context(ca_pem=bank.ca_pem, check_dates=False)
        assert shake(address, context=context, server_name=bank.name.dns) == "TLSv1.3"


def test_tls_1_2_is_refused_and_named(tmp_path: Path) -> None:
    bank = make_identity(tmp_path, "bank", Role.COMPUTE)
    old = of(bank)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    context = tls.client_context(ca_pem=bank.ca_pem)
    with serving(old) as address, pytest.raises(IdentityError, match=r"does not speak TLS 1.3"):
        shake(address, context=context, server_name=bank.name.dns)


def test_a_port_that_speaks_no_tls_is_named(tmp_path: Path) -> None:
    context = tls.client_context(ca_pem=None)
    with serving(None) as address, pytest.raises(IdentityError, match=r"speaks no TLS"):
        shake(address, context=context, server_name=None)


def test_a_port_that_nothing_listens_on_is_a_channel_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ChannelError, match=rf"peer at {address} refuses connections"):
        tls.connect(address, deadline=time.monotonic() + 5, whom="peer")


def test_a_silent_port_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ChannelError, match=r"did not answer in time"):
            tls.open_tls(
                address,
                context=tls.client_context(ca_pem=None),
                server_name=None,
                deadline=time.monotonic() + 0.05,
                whom="peer",
            )


def test_a_peer_that_is_gone_before_the_handshake_leaves_no_open_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plains: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def connect_and_lose(address: str, *, deadline: float, whom: str) -> socket.socket:
            plains.append(socket.create_connection(listener.getsockname(), timeout=5))
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            select.select(plains, [], [], 5)
            return plains[0]

        monkeypatch.setattr(tls, "connect", connect_and_lose)
        context = tls.client_context(ca_pem=None)
        with pytest.raises(ChannelError, match=r"peer at a:1 closed the connection"):
            shake("a:1", context=context, server_name=None)
    assert plains[0].fileno() == -1
    gc.collect()  # an open socket would make its ResourceWarning a failure here


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(-2, "x"), "no such host"),
        (ConnectionResetError(), "closed the connection"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (UnicodeError("x"), "UnicodeError"),
    ],
)
def test_errors_of_the_network_become_channel_errors(error: Exception, reason: str) -> None:
    explained = tls.explain(error, whom="peer", address="a:1")
    assert isinstance(explained, ChannelError)
    assert reason in str(explained)


def test_an_alert_about_our_certificate_is_an_identity_error() -> None:
    alert = ssl.SSLError(1, "x")
    alert.reason = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    explained = tls.explain(alert, whom="peer", address="a:1")
    assert isinstance(explained, IdentityError)
    assert "peer at a:1 refuses our certificate: it has expired" in str(explained)


def test_a_handshake_that_ends_without_an_alert_is_a_channel_error() -> None:
    broken = ssl.SSLEOFError(8, "x")
    broken.reason = "UNEXPECTED_EOF_WHILE_READING"
    explained = tls.explain(broken, whom="peer", address="a:1")
    assert isinstance(explained, ChannelError)
    assert "broke the TLS handshake off: UNEXPECTED_EOF" in str(explained)


def test_an_unusual_verification_failure_keeps_the_words_of_openssl() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = 99, "odd"
    assert "does not verify: odd" in str(tls.explain(error, whom="peer", address="a:1"))


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:0", "host:65536", "h:1x", "h:²"]
)
def test_an_address_that_is_none_is_a_manifest_error(address: str) -> None:
    with pytest.raises(ManifestError, match=r"expected HOST:PORT"):
        tls.parse_address(address)


def test_an_address_of_any_family_is_split() -> None:
    assert tls.parse_address("host.example:65535") == ("host.example", 65535)
    assert tls.parse_address("[::1]:1") == ("::1", 1)


def test_a_folder_without_a_pair_cannot_be_presented(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"no pair that TLS accepts"):
        tls.client_context(ca_pem=None, folder=tmp_path)
