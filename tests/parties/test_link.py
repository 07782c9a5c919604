"""`splitlearn link emulate` as it is typed."""

import socket
import threading

import pytest
from typer.testing import CliRunner, Result

from parties import link
from splitlearn.errors import ManifestError
from tests.jobs import a_port


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(link.app, ["emulate", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_it_says_what_it_is_and_what_it_carried() -> None:
    rates = ("--mbit", "8", "--mbit-back", "2", "--rtt-ms", "20", "--jitter-ms", "1")
    shown = run("--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", *rates, "--for-s", "0").stdout
    assert (
        "carries to 127.0.0.1:9: 8 Mbit/s there, 2 Mbit/s back, round trip 20 ms, up to 1 ms"
        in shown
    )
    assert "0 connections; 0 bytes to the peer, 0 bytes back" in shown


def test_it_carries_and_makes_the_faults_it_is_asked_for() -> None:
    port = a_port()
    with socket.create_server(("127.0.0.1", 0)) as far:
        there = f"127.0.0.1:{far.getsockname()[1]}"
        faults = ("--stall-after-s", "0", "--stall-for-s", "0.05", "--flip-after-s", "0.02")
        done: list[Result] = []
        arguments = ("--listen", f"127.0.0.1:{port}", "--to", there, "--for-s", "2", *faults)
        thread = threading.Thread(target=lambda: done.append(run(*arguments)))
        thread.start()
        with dialled(port) as near:
            near.sendall(b"abc")
            far.settimeout(20)
            with far.accept()[0] as came:
                came.settimeout(20)
                assert came.recv(3, socket.MSG_WAITALL) == b"`bc"
        thread.join(20)
    shown = done[0].stdout
    assert "no limit each way" in shown
    assert "0 s: nothing is carried any more" in shown
    assert "0.02 s: one bit on its way to the peer is flipped" in shown
    assert "0.05 s: the link is whole again" in shown
    assert "1 connections; 3 bytes to the peer, 0 bytes back" in shown


def dialled(port: int) -> socket.socket:
    """A connection, as soon as somebody listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            continue


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--listen", "nowhere", "--to", "127.0.0.1:9"), "--listen is 'nowhere'"),
        (("--listen", ":0", "--to", "127.0.0.1:0"), "--to is '127.0.0.1:0'"),
        (("--listen", ":0", "--to", "127.0.0.1:9", "--cut-for-s", "1"), "--cut-after-s"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ManifestError, match=sentence):
        run(*arguments)
