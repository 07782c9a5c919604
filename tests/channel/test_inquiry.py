"""Asking a listener what it thinks of us; it must not notice more than a refusal."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from splitlearn.channel import Listener, handshake
from splitlearn.channel.inquiry import inquire
from splitlearn.channel.streams import ServerStream
from splitlearn.errors import ChannelError, IdentityError, PeerError
from splitlearn.identity import Identity
from splitlearn.roles import Role
from tests.federation import make_identity

WAIT_S = 20.0


def ask(listener: Listener, identity: Identity, peer: Identity) -> None:
    address = f"127.0.0.1:{listener.port}"
    inquire(address, identity=identity, peer=peer.name, deadline_s=WAIT_S)


def in_version_two(encode: Callable[..., bytes]) -> Callable[..., bytes]:
    def encoded(words: object) -> bytes:
        said = encode(words)
        return said[:4] + b"\x02" + said[5:]

    return encoded


def test_a_listener_that_would_take_us_begins_nothing(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    for _ in range(2):
        ask(listener, trusted, compute)
    with pytest.raises(ChannelError, match=r"last refused: .*spiffe://fed\.example/doctor was"):
        listener.accept(timeout_s=0.05)


def test_a_listener_that_awaits_somebody_else_says_so(
    trusted: Identity, compute: Identity, folder: Path
) -> None:
    other = make_identity(folder, "gamma", Role.TRUSTED).name
    roles = frozenset({Role.TRUSTED})
    listening = Listener("127.0.0.1:0", identity=compute, expect_roles=roles, peer=other)
    try:
        with pytest.raises(IdentityError, match=r"would refuse us and says: .* the wrong name"):
            ask(listening, trusted, compute)
    finally:
        listening.close()


def test_our_role_may_be_the_wrong_one(listener: Listener, compute: Identity, folder: Path) -> None:
    auditor = make_identity(folder, "delta", Role.AUDITOR)
    with pytest.raises(IdentityError, match=r"wrong role auditor; expected trusted"):
        ask(listener, auditor, compute)


def test_another_version_is_named_by_whichever_side_sees_it(
    listener: Listener, trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(handshake, "encode_hello", in_version_two(handshake.encode_hello))
        with pytest.raises(PeerError, match=r"says: the peer speaks protocol 2, we speak 1"):
            ask(listener, trusted, compute)
    monkeypatch.setattr(handshake, "encode_ack", in_version_two(handshake.encode_ack))
    with pytest.raises(PeerError, match=r"^the peer speaks protocol 2, we speak 1"):
        ask(listener, trusted, compute)


def test_a_listener_that_takes_anything_is_none_of_ours(
    listener: Listener, trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = handshake.encode_ack(handshake.Signed(b"", b""))
    monkeypatch.setattr(handshake, "encode_ack", lambda _: signed)
    with pytest.raises(PeerError, match=r"took a HELLO that was not for it"):
        ask(listener, trusted, compute)


def test_nobody_there_is_a_network_failure(trusted: Identity, compute: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ChannelError, match=r"did not answer within 0\.3 s"):
            inquire(address, identity=trusted, peer=compute.name, deadline_s=0.3)
    with pytest.raises(ChannelError, match=r"gave no answer to a HELLO: "):
        inquire(address, identity=trusted, peer=compute.name, deadline_s=WAIT_S)


def test_a_listener_that_hangs_up_is_a_network_failure(
    listener: Listener, trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        return

    monkeypatch.setattr(ServerStream, "write", nothing)
    with pytest.raises(ChannelError, match=r"hung up on a HELLO"):
        ask(listener, trusted, compute)
