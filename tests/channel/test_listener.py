"""The listening end: serves one party after another, turns others away and says why to both sides."""

import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.channel import Conversation, Listener, Released, connect, control, handshake
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.streams import CONTROL, FRAMES, Connection, LinkLost
from splitlearn.errors import ChannelError, IdentityError, ManifestError, PeerError, WireError
from splitlearn.identity import Identity
from splitlearn.roles import Kind, Role
from tests.federation import make_identity

Message = Callable[..., Released]
WAIT_S = 20.0
TRUSTED = frozenset({Role.TRUSTED})


def listen(identity: Identity, **more: object) -> Listener:
    return Listener(  # type: ignore[call-overload, no-any-return, arg-type, unused-ignore]
        "127.0.0.1:0",
        identity=identity,
        **{"expect_roles": TRUSTED, **more},  # type: ignore[arg-type]
    )


def dial(to: Listener, identity: Identity, peer: Identity, *, run: str = "") -> Conversation:
    return connect(
        f"127.0.0.1:{to.port}", identity=identity, peer=peer.name, run=run, deadline_s=WAIT_S
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def speak(
    to: Listener,
    identity: Identity,
    peer: Identity,
    talk: Callable[[Connection], Coroutine[object, object, bytes | None]],
    *,
    method: str = FRAMES,
) -> bytes | None:
    """Open one stream by hand and talk over it; what `talk` returns, or None where it was hung up on."""
    loop = LoopThread("by hand")

    async def once() -> bytes | None:
        connection = Connection(
            f"127.0.0.1:{to.port}", identity=identity, peer=peer.name, method=method
        )
        try:
            return await talk(connection)
        except LinkLost:
            return None
        finally:
            await connection.close()

    try:
        return loop.run(once(), timeout_s=WAIT_S)
    finally:
        loop.close()


def hello(identity: Identity, peer: Identity, **changes: object) -> bytes:
    values: dict[str, object] = {
        "federation": identity.name.federation,
        "party": identity.name.party,
        "role": identity.name.role,
        "expects": peer.name.uri,
        "run": "demo",
        "incarnation": "c" * 32,
        "listener": "",
        "received": 0,
        "window": 8,
        "nonce": bytes(16),
    }
    return handshake.encode_hello(handshake.Hello(**{**values, **changes}))  # type: ignore[arg-type]


def answer_to(to: Listener, identity: Identity, peer: Identity, data: bytes) -> object:
    async def talk(connection: Connection) -> bytes | None:
        await connection.write(data)
        return await connection.read()

    answer = speak(to, identity, peer, talk)
    return None if answer is None else handshake.decode_ack(answer)


def test_one_listener_serves_one_conversation_after_another(
    listener: Listener, trusted: Identity, compute: Identity, message: Message
) -> None:
    for turn in range(3):
        dialled = dial(listener, trusted, compute, run=f"run{turn}")
        accepted = listener.accept(timeout_s=WAIT_S)
        assert accepted.run == f"run{turn}"
        dialled.send(message(turn), deadline_s=WAIT_S)
        assert accepted.receive(timeout_s=WAIT_S).seq == turn
        (dialled, accepted)[turn % 2].close(reason="next")
        (accepted, dialled)[turn % 2].close()


def test_two_parties_are_served_at_the_same_time(
    folder: Path, listener: Listener, trusted: Identity, compute: Identity, message: Message
) -> None:
    other = make_identity(folder, "iota", Role.TRUSTED)
    dialled = [dial(listener, each, compute) for each in (trusted, other)]
    accepted = [listener.accept(timeout_s=WAIT_S) for _ in dialled]
    assert [each.name.party for each in accepted] == ["alpha", "iota"]
    for seq, channel in enumerate(dialled):
        channel.send(message(seq), deadline_s=WAIT_S)
    assert [each.receive(timeout_s=WAIT_S).seq for each in accepted] == [0, 1]
    for channel in (*dialled, *accepted):
        channel.close(reason="done")


def test_either_role_may_listen(trusted: Identity, compute: Identity, message: Message) -> None:
    listening = listen(trusted, expect_roles=frozenset({Role.COMPUTE}), run="demo")
    dialled = connect(
        f"127.0.0.1:{listening.port}", identity=compute, peer=trusted.name, deadline_s=WAIT_S
    )
    accepted = listening.accept(timeout_s=WAIT_S)
    assert dialled.run == accepted.run == "demo"
    accepted.send(message(0), deadline_s=WAIT_S)
    assert dialled.receive(timeout_s=WAIT_S).seq == 0
    dialled.close(reason="done")
    accepted.close()
    listening.close()


def test_waiting_for_nobody_is_a_channel_error(listener: Listener) -> None:
    with pytest.raises(ChannelError, match=r"dialled port \d+ for 0\.05 s"):
        listener.accept(timeout_s=0.05)


def test_closing_wakes_whoever_accepts_and_frees_the_port(compute: Identity) -> None:
    first = listen(compute)
    told: list[str] = []

    def wait() -> None:
        try:
            first.accept(timeout_s=WAIT_S)
        except ChannelError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    first.close()
    first.close()
    waiting.join()
    assert told == ["the listener is closed"]
    again = Listener(f"127.0.0.1:{first.port}", identity=compute, expect_roles=TRUSTED)
    assert again.port == first.port
    again.close()


def test_closing_the_listener_aborts_its_conversations(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    dialled = dial(listener, trusted, compute)
    accepted = listener.accept(timeout_s=WAIT_S)
    listener.close()
    with pytest.raises(PeerError, match="the listener was closed"):
        dialled.receive(timeout_s=WAIT_S)
    with pytest.raises(ChannelError, match="on this side"):
        accepted.receive(timeout_s=WAIT_S)
    dialled.close()


def test_a_port_that_is_taken_is_a_manifest_error(listener: Listener, compute: Identity) -> None:
    with pytest.raises(ManifestError, match=f"cannot listen on 127.0.0.1:{listener.port}"):
        Listener(f"127.0.0.1:{listener.port}", identity=compute, expect_roles=TRUSTED)


def test_an_expired_certificate_of_our_own_is_told_before_listening(folder: Path) -> None:
    now = datetime.now(UTC)
    expired = make_identity(
        folder,
        "kappa",
        Role.COMPUTE,
        not_before=now - timedelta(hours=2),
        not_after=now - timedelta(hours=1),
    )
    with pytest.raises(IdentityError, match="our own certificate expired"):
        listen(expired)


# Refusals: the same sentence at both ends


def test_a_wrong_role_is_refused_and_told_to_both(
    folder: Path, trusted: Identity, compute: Identity
) -> None:
    said: list[str] = []
    listening = listen(compute, report=said.append, expect_roles=frozenset({Role.AUDITOR}))
    with pytest.raises(IdentityError, match=r"refused us and says: .*wrong role trusted"):
        dial(listening, trusted, compute)
    assert "wrong role trusted" in said[0]
    with pytest.raises(ChannelError, match=r"last refused: .*wrong role trusted"):
        listening.accept(timeout_s=0.01)
    listening.close()


def test_only_the_expected_party_may_dial(
    folder: Path, trusted: Identity, compute: Identity
) -> None:
    other = make_identity(folder, "lambda", Role.TRUSTED)
    listening = listen(compute, peer=other.name)
    with pytest.raises(IdentityError, match="wrong name"):
        dial(listening, trusted, compute)
    dial(listening, other, compute).close(reason="done")
    listening.close()


def test_another_run_is_refused(trusted: Identity, compute: Identity) -> None:
    listening = listen(compute, run="monday")
    with pytest.raises(PeerError, match="this is run 'monday', not 'tuesday'"):
        dial(listening, trusted, compute, run="tuesday")
    dial(listening, trusted, compute, run="monday").close(reason="done")
    listening.close()


def test_a_refused_stranger_leaves_the_conversation_alone(
    tmp_path: Path, listener: Listener, trusted: Identity, compute: Identity, message: Message
) -> None:
    dialled = dial(listener, trusted, compute)
    accepted = listener.accept(timeout_s=WAIT_S)
    with pytest.raises(IdentityError):
        dial(listener, make_identity(tmp_path, "alpha", Role.TRUSTED), compute)
    answer_to(listener, trusted, compute, b"garbage")
    dialled.send(message(0), deadline_s=WAIT_S)
    assert accepted.receive(timeout_s=WAIT_S).seq == 0
    dialled.close(reason="done")
    accepted.close()


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"party": "beta"}, "identity", "HELLO is from trusted beta"),
        ({"role": Role.AUDITOR}, "identity", "HELLO is from auditor alpha"),
        (
            {"expects": "spiffe://fed.example/party/gamma/role/compute"},
            "name",
            "party/gamma/role/compute was dialled, but this is",
        ),
        ({"listener": "d" * 32, "incarnation": "e" * 32, "received": 7}, None, ""),
    ],
    ids=["another party", "another role", "another listener meant", "a listener before us"],
)
def test_a_hello_is_believed_as_far_as_the_certificate_goes(
    listener: Listener,
    trusted: Identity,
    compute: Identity,
    changes: dict[str, object],
    code: str | None,
    said: str,
) -> None:
    answer = answer_to(listener, trusted, compute, hello(trusted, compute, **changes))
    if code is None:
        assert isinstance(answer, handshake.Signed)
        assert handshake.decode_body(answer.body).received == 0
    else:
        assert isinstance(answer, handshake.Refused)
        assert answer.code == code
        assert said in answer.sentence


def test_another_version_is_refused_with_both_numbers(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    answer = answer_to(listener, trusted, compute, b"SPLH\x07" + bytes(40))
    assert isinstance(answer, handshake.Refused)
    assert answer.code == "protocol"
    assert "protocol 7, we speak 1" in answer.sentence


def test_garbage_for_a_hello_is_refused(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    answer = answer_to(listener, trusted, compute, b"GET / HTTP/1.1")
    assert isinstance(answer, handshake.Refused)
    assert answer.code == "protocol"


def test_a_message_over_the_limit_never_reaches_us(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    async def talk(connection: Connection) -> bytes | None:
        await connection.write(bytes(300_000))
        return await connection.read()

    assert speak(listener, trusted, compute, talk) is None


def test_a_stream_without_a_hello_is_dropped(
    listener: Listener,
    trusted: Identity,
    compute: Identity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("splitlearn.channel.listener._HELLO_S", 0.05)

    async def silent(connection: Connection) -> bytes | None:
        return await connection.read()

    async def closes(connection: Connection) -> bytes | None:
        await connection._call.done_writing()
        return await connection.read()

    for method in (FRAMES, CONTROL):
        assert speak(listener, trusted, compute, silent, method=method) is None
        assert speak(listener, trusted, compute, closes, method=method) is None


def test_a_control_stream_without_its_links_token_is_dropped(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    async def talk(connection: Connection) -> bytes | None:
        await connection.write(handshake.encode_attach(handshake.Attach(bytes(16))))
        return await connection.read()

    assert speak(listener, trusted, compute, talk, method=CONTROL) is None


def test_garbage_for_a_frame_is_a_wire_error_and_the_peer_is_told(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    async def talk(connection: Connection) -> bytes | None:
        await connection.write(hello(trusted, compute))
        await connection.read()
        await connection.write(b"this is not a frame at all, is it?")
        return await connection.read()

    assert speak(listener, trusted, compute, talk) is None
    # Accepted or not before it broke: the engine never sees garbage.
    with pytest.raises((WireError, ChannelError)):
        listener.accept(timeout_s=0.2).receive(timeout_s=WAIT_S)


def test_garbage_after_acceptance_is_a_wire_error_at_the_engine(
    ends: tuple[Conversation, Conversation],
) -> None:
    dialled, accepted = ends
    bad = Released(kind=Kind.READY, seq=0, raw=b"x" * 100)
    dialled.send(bad, deadline_s=WAIT_S)
    with pytest.raises(WireError, match="a frame begins with"):
        accepted.receive(timeout_s=WAIT_S)
    with pytest.raises(PeerError, match="says: a frame begins with"):
        dialled.receive(timeout_s=WAIT_S)


def test_more_waiting_conversations_than_seats_are_told_to_come_back(
    listener: Listener,
    trusted: Identity,
    compute: Identity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("splitlearn.channel.listener._MAX_WAITING", 0)
    answer = answer_to(listener, trusted, compute, hello(trusted, compute))
    assert isinstance(answer, handshake.Refused)
    assert answer.code == "busy"


def test_a_conversation_that_was_replaced_before_it_was_accepted_is_not_accepted(
    listener: Listener, trusted: Identity, compute: Identity, message: Message
) -> None:
    first = dial(listener, trusted, compute)
    first._loop.close()
    second = dial(listener, trusted, compute)
    accepted = listener.accept(timeout_s=WAIT_S)
    second.send(message(3), deadline_s=WAIT_S)
    assert accepted.receive(timeout_s=WAIT_S).seq == 3
    with pytest.raises(ChannelError, match="nobody"):
        listener.accept(timeout_s=0.01)
    second.close(reason="done")
    accepted.close()


def test_who_fails_at_tls_is_reported_once(
    tmp_path: Path, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitlearn.channel.listener._TLS_S", 0.05)
    said: list[str] = []
    listening = listen(compute, report=said.append)
    with pytest.raises(IdentityError):
        dial(listening, make_identity(tmp_path, "alpha", Role.TRUSTED), compute)
    until(lambda: bool(said))
    assert "got no further than TLS" in said[0]
    assert len(said) == 1
    listening.close()


def test_who_came_through_tls_is_not_reported(
    trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    listening = listen(compute, report=said.append)
    monkeypatch.setattr("splitlearn.channel.listener._TLS_S", 0.2)
    dialled = dial(listening, trusted, compute)
    with pytest.raises(ChannelError):
        dialled.receive(timeout_s=0.4)
    assert said == []
    dialled.close(reason="done")
    listening.close()


def test_a_renewed_certificate_is_shown_to_the_next_dialler(
    folder: Path, trusted: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitlearn.channel.listener._RELOAD_S", 0.0)
    old = make_identity(folder, "mu", Role.COMPUTE)
    listening = listen(old)
    new = make_identity(folder, "mu", Role.COMPUTE)
    assert new.fingerprint != old.fingerprint
    dialled = dial(listening, trusted, old)
    assert dialled.authorised is not None
    assert dialled.authorised.fingerprint == new.fingerprint
    dialled.close(reason="done")
    listening.close()


# Diallers that play by other rules


def handshake_by_hand(data: bytes) -> tuple[handshake.Welcome, bytes]:
    """The Welcome in an ACK, and the ATTACH that its control stream has to begin with."""
    signed = handshake.decode_ack(data)
    assert isinstance(signed, handshake.Signed)
    welcome = handshake.decode_body(signed.body)
    return welcome, handshake.encode_attach(handshake.Attach(welcome.link))


def test_a_second_link_of_the_same_process_replaces_the_first(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    """A dialler may know that its link is dead long before the listener does."""
    address = f"127.0.0.1:{listener.port}"

    async def talk(first: Connection) -> bytes | None:
        await first.write(hello(trusted, compute))
        welcome, _ = handshake_by_hand(await first.read() or b"")
        again = hello(trusted, compute, listener=welcome.incarnation)
        second = Connection(address, identity=trusted, peer=compute.name, method=FRAMES)
        await second.write(again)
        handshake_by_hand(await second.read() or b"")
        assert await first.read() is None
        await second.close()
        return b"replaced"

    assert speak(listener, trusted, compute, talk) == b"replaced"


def test_a_links_token_opens_one_control_stream_only(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    address = f"127.0.0.1:{listener.port}"

    async def talk(frames: Connection) -> bytes | None:
        await frames.write(hello(trusted, compute))
        _, attach = handshake_by_hand(await frames.read() or b"")
        first, second = (
            Connection(address, identity=trusted, peer=compute.name, method=CONTROL)
            for _ in range(2)
        )
        await first.write(attach)
        word = await first.read()
        await second.write(attach)
        assert await second.read() is None
        await first.close()
        await second.close()
        return word

    assert speak(listener, trusted, compute, talk) == control.encode(control.Ack(0))


def test_a_dialler_that_ignores_our_bye_is_hung_up_on(
    listener: Listener, trusted: Identity, compute: Identity
) -> None:
    closing: list[threading.Thread] = []

    async def talk(frames: Connection) -> bytes | None:
        await frames.write(hello(trusted, compute))
        await frames.read()
        closing.append(threading.Thread(target=lambda: listener.accept(timeout_s=WAIT_S).close()))
        closing[0].start()
        assert await frames.read() is None
        return b"hung up"

    assert speak(listener, trusted, compute, talk) == b"hung up"
    closing[0].join()


def test_an_unforeseen_failure_ends_the_conversation_and_the_link(
    listener: Listener, trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explode(*_: object) -> None:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr("splitlearn.channel.link.Link._read_frames", explode)

    async def talk(frames: Connection) -> bytes | None:
        await frames.write(hello(trusted, compute))
        handshake_by_hand(await frames.read() or b"")
        return await frames.read()

    assert speak(listener, trusted, compute, talk) is None
    # Ended before anybody accepted it, so nobody is handed a broken conversation.
    with pytest.raises(ChannelError, match="nobody to speak with"):
        listener.accept(timeout_s=0.2)
