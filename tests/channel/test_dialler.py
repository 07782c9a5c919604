"""The dialling end: links that break and heal, peers that restart, and refusals that end the matter."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.channel import (
    Conversation,
    Listener,
    MemoryChannel,
    PeerRestarted,
    Released,
    connect,
    handshake,
    link,
)
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.streams import CONTROL, FRAMES, LinkLost, Server, ServerStream
from splitlearn.errors import ChannelError, IdentityError, PeerError, SplitLearnError, WireError
from splitlearn.identity import Identity, PartyName, revoke
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity
from tests.link import LinkProxy

Message = Callable[..., Released]
WAIT_S = 20.0
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def proxy(listener: Listener) -> Iterator[LinkProxy]:
    with LinkProxy(("127.0.0.1", listener.port)) as between:
        yield between


@pytest.fixture
def over_proxy(
    proxy: LinkProxy, listener: Listener, trusted: Identity, compute: Identity
) -> Iterator[tuple[Conversation, Conversation]]:
    dialled = connect(
        proxy.address, identity=trusted, peer=compute.name, run="demo", deadline_s=WAIT_S
    )
    accepted = listener.accept(timeout_s=WAIT_S)
    yield dialled, accepted
    dialled.close(reason="the test is over")
    accepted.close(reason="the test is over")


def dial(listener: Listener, identity: Identity, peer: PartyName, *, run: str = "") -> Conversation:
    return connect(
        f"127.0.0.1:{listener.port}", identity=identity, peer=peer, run=run, deadline_s=WAIT_S
    )


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    result: list[object] = []

    def run() -> None:
        try:
            result.append(call())
        except SplitLearnError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def kill(end: Conversation) -> None:
    """End a dialler as kill -9 would: no word to the peer."""
    end._loop.close()


# A broken link


def test_a_link_cut_in_the_middle_of_messages_changes_nothing_for_either_engine(
    over_proxy: tuple[Conversation, Conversation], proxy: LinkProxy, message: Message
) -> None:
    trusted, compute = over_proxy
    count = 20
    out = [message(seq, size=400_000) for seq in range(count)]

    def echo() -> list[bytes]:
        raws = []
        for _ in range(count):
            frame = compute.receive(timeout_s=WAIT_S)
            raws.append(frame.raw)
            compute.send(Released(kind=frame.kind, seq=frame.seq, raw=frame.raw), deadline_s=WAIT_S)
        return raws

    def disturb() -> None:
        for _ in range(4):
            before = proxy.up.carried
            proxy.cut_after(700_000)
            while not proxy.is_cut and proxy.up.carried < before + 1_500_000:
                time.sleep(0.005)
            time.sleep(0.05)
            proxy.heal()

    echoing, echoed = in_thread(echo)
    disturbing, _ = in_thread(disturb)

    def send() -> None:
        for each in out:
            trusted.send(each, deadline_s=WAIT_S)

    sending, _ = in_thread(send)
    back = [trusted.receive(timeout_s=WAIT_S).raw for _ in range(count)]
    for thread in (echoing, sending, disturbing):
        thread.join()
    assert back == [each.raw for each in out]
    assert echoed == [back]
    assert proxy.connections > 4


def test_a_pulled_cable_is_noticed_and_mended(
    over_proxy: tuple[Conversation, Conversation],
    proxy: LinkProxy,
    message: Message,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusted, compute = over_proxy
    monkeypatch.setattr(link, "PING_S", 0.1)
    monkeypatch.setattr(link, "SILENCE_S", 0.4)
    proxy.cut()
    proxy.heal()
    trusted.send(message(0), deadline_s=WAIT_S)
    assert compute.receive(timeout_s=WAIT_S).seq == 0
    before = proxy.connections
    proxy.stall()
    trusted.send(message(1, size=300_000), deadline_s=WAIT_S)
    while proxy.connections == before:
        time.sleep(0.01)
    proxy.heal()
    assert compute.receive(timeout_s=WAIT_S).raw == message(1, size=300_000).raw
    compute.send(message(0), deadline_s=WAIT_S)
    assert trusted.receive(timeout_s=WAIT_S).seq == 0


def test_a_deadline_during_a_cut_tells_the_state_of_the_link(
    over_proxy: tuple[Conversation, Conversation], proxy: LinkProxy
) -> None:
    trusted, compute = over_proxy
    proxy.cut()
    with pytest.raises(ChannelError, match=r"beta\.fed\.example sent nothing.*link is down: "):
        trusted.receive(timeout_s=0.5)
    with pytest.raises(ChannelError, match=r"waiting for trusted\.alpha.* to dial again"):
        compute.receive(timeout_s=0.1)


def test_bytes_changed_on_the_way_break_the_link_and_not_the_messages(
    over_proxy: tuple[Conversation, Conversation], proxy: LinkProxy, message: Message
) -> None:
    trusted, compute = over_proxy
    before = proxy.connections
    proxy.corrupt_up()
    for seq in range(3):
        trusted.send(message(seq, size=100_000), deadline_s=WAIT_S)
    frames = [compute.receive(timeout_s=WAIT_S) for _ in range(3)]
    assert [frame.raw for frame in frames] == [message(seq, size=100_000).raw for seq in range(3)]
    # The changed bytes may have been those of the control stream, which breaks a little later.
    deadline = time.monotonic() + WAIT_S
    while proxy.connections == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_during_a_cut_is_bounded(
    over_proxy: tuple[Conversation, Conversation], proxy: LinkProxy, message: Message
) -> None:
    proxy.cut()
    over_proxy[0].send(message(0), deadline_s=WAIT_S)
    closing, _ = in_thread(over_proxy[0].close)
    closing.join(WAIT_S)
    assert not closing.is_alive()


def test_a_dialler_that_missed_the_bye_is_told_when_it_comes_back(
    over_proxy: tuple[Conversation, Conversation], proxy: LinkProxy
) -> None:
    trusted, compute = over_proxy
    proxy.cut()
    compute.close(reason="out of memory")
    proxy.heal()
    with pytest.raises(PeerError, match="this conversation was closed: out of memory"):
        trusted.receive(timeout_s=WAIT_S)


# A peer that restarts


def test_a_restarted_dialler_is_told_to_the_listening_survivor(
    listener: Listener, trusted: Identity, compute: Identity, message: Message
) -> None:
    first = dial(listener, trusted, compute.name, run="demo")
    survivor = listener.accept(timeout_s=WAIT_S)
    survivor.send(message(0), deadline_s=WAIT_S)
    first.send(message(0), deadline_s=WAIT_S)
    survivor.receive(timeout_s=WAIT_S)
    kill(first)
    second = dial(listener, trusted, compute.name, run="demo")
    with pytest.raises(PeerRestarted, match=r"trusted\.alpha.*new process"):
        survivor.receive(timeout_s=WAIT_S)
    survivor.renew()
    second.send(message(0), deadline_s=WAIT_S)
    assert survivor.receive(timeout_s=WAIT_S).seq == 0
    survivor.send(message(0, size=10), deadline_s=WAIT_S)
    assert second.receive(timeout_s=WAIT_S).raw == message(0, size=10).raw
    second.close(reason="done")
    survivor.close()


def test_a_restarted_listener_is_told_to_the_dialling_survivor(
    trusted: Identity, compute: Identity, message: Message
) -> None:
    roles = frozenset({Role.TRUSTED})
    old = Listener("127.0.0.1:0", identity=compute, expect_roles=roles)
    with LinkProxy(("127.0.0.1", old.port)) as proxy:
        survivor = connect(
            proxy.address, identity=trusted, peer=compute.name, run="demo", deadline_s=WAIT_S
        )
        old.accept(timeout_s=WAIT_S)
        survivor.send(message(0), deadline_s=WAIT_S)
        proxy.cut()
        old.close()
        new = Listener("127.0.0.1:0", identity=compute, expect_roles=roles)
        proxy.retarget(("127.0.0.1", new.port))
        proxy.heal()
        with pytest.raises(PeerRestarted, match=r"compute\.beta"):
            survivor.receive(timeout_s=WAIT_S)
        survivor.renew()
        again = new.accept(timeout_s=WAIT_S)
        survivor.send(message(7), deadline_s=WAIT_S)
        assert again.receive(timeout_s=WAIT_S).seq == 7
        survivor.close(reason="done")
        new.close()


PEER = """
    import sys
    from pathlib import Path
    from splitlearn.channel import Listener, Released
    from splitlearn.identity import Identity
    from splitlearn.roles import Role

    identity = Identity.load(Path(sys.argv[1]))
    listener = Listener("127.0.0.1:0", identity=identity, expect_roles=frozenset({Role.TRUSTED}))
    print(listener.port, flush=True)
    channel = listener.accept(timeout_s=60)
    while True:
        frame = channel.receive(timeout_s=60)
        channel.send(Released(kind=frame.kind, seq=frame.seq, raw=frame.raw), deadline_s=60)
"""


def test_a_killed_and_restarted_process_is_told(
    trusted: Identity, compute: Identity, message: Message
) -> None:
    def start() -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PEER), str(compute.folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def end(process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    process, port = start()
    with LinkProxy(("127.0.0.1", port)) as proxy:
        channel = connect(proxy.address, identity=trusted, peer=compute.name, deadline_s=WAIT_S)
        channel.send(message(0), deadline_s=WAIT_S)
        assert channel.receive(timeout_s=WAIT_S).seq == 0
        end(process)
        channel.send(message(1), deadline_s=WAIT_S)
        process, port = start()
        proxy.retarget(("127.0.0.1", port))
        with pytest.raises(PeerRestarted):
            channel.receive(timeout_s=WAIT_S)
        channel.renew()
        channel.send(message(0, size=5), deadline_s=WAIT_S)
        assert channel.receive(timeout_s=WAIT_S).raw == message(0, size=5).raw
        channel.close(reason="done")
        end(process)


# Refusals


def test_nobody_there_is_a_channel_error_at_the_deadline(
    trusted: Identity, compute: Identity
) -> None:
    with pytest.raises(
        ChannelError, match=r"compute\.beta.* did not answer at 127\.0\.0\.1:9 within 0\.3 s"
    ):
        connect("127.0.0.1:9", identity=trusted, peer=compute.name, deadline_s=0.3)


def test_a_dialler_may_be_there_first(trusted: Identity, compute: Identity) -> None:
    with LinkProxy(("127.0.0.1", 9)) as proxy:
        waiting, result = in_thread(
            lambda: connect(proxy.address, identity=trusted, peer=compute.name, deadline_s=WAIT_S)
        )
        while proxy.connections < 2:
            time.sleep(0.01)
        listening = Listener(
            "127.0.0.1:0", identity=compute, expect_roles=frozenset({Role.TRUSTED})
        )
        proxy.retarget(("127.0.0.1", listening.port))
        waiting.join()
        assert isinstance(result[0], Conversation)
        result[0].close(reason="done")
        listening.close()


def test_another_ca_is_an_identity_error_that_says_so(
    tmp_path: Path, listener: Listener, compute: Identity
) -> None:
    stranger = make_identity(tmp_path, "alpha", Role.TRUSTED)
    with pytest.raises(IdentityError, match="wrong CA"):
        dial(listener, stranger, compute.name)


def test_a_listener_of_another_name_is_an_identity_error_that_says_who_it_is(
    folder: Path, listener: Listener, trusted: Identity
) -> None:
    expected = make_identity(folder, "gamma", Role.COMPUTE).name
    with pytest.raises(IdentityError, match=r"party/beta/role/compute.*expected.*party/gamma"):
        dial(listener, trusted, expected)


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [(-30, -1, "expired"), (1, 30, "not yet valid")],
    ids=["expired", "not yet valid"],
)
def test_our_own_certificate_out_of_its_days_is_told_before_dialling(
    folder: Path, compute: Identity, begins: int, ends: int, said: str
) -> None:
    now = datetime.now(UTC)
    late = make_identity(
        folder,
        f"late{begins + 30}",
        Role.TRUSTED,
        not_before=now + timedelta(hours=begins),
        not_after=now + timedelta(hours=ends),
    )
    with pytest.raises(IdentityError, match=f"our own certificate.*{said}"):
        connect("127.0.0.1:9", identity=late, peer=compute.name, deadline_s=WAIT_S)


def test_a_listener_whose_certificate_expired_meanwhile_is_an_identity_error(
    folder: Path, trusted: Identity
) -> None:
    now = datetime.now(UTC)
    short = make_identity(folder, "xi", Role.COMPUTE, not_after=now + timedelta(seconds=1.5))
    listening = Listener("127.0.0.1:0", identity=short, expect_roles=frozenset({Role.TRUSTED}))
    while datetime.now(UTC) < short.certificate.not_valid_after_utc + timedelta(seconds=1):
        time.sleep(0.05)
    with pytest.raises(IdentityError, match=r"party/xi/role/compute expired"):
        dial(listening, trusted, short.name)
    listening.close()


def test_a_denied_party_is_refused_and_told(folder: Path, compute: Identity) -> None:
    bad = make_identity(folder, "mallory", Role.TRUSTED)
    authority = make_authority(folder)
    revoke(authority.folder, party="mallory")
    told = make_identity(folder, "delta", Role.COMPUTE)
    said: list[str] = []
    listening = Listener(
        "127.0.0.1:0", identity=told, expect_roles=frozenset({Role.TRUSTED}), report=said.append
    )
    with pytest.raises(IdentityError, match=r"refused us and says: .*mallory.*denied"):
        dial(listening, bad, told.name)
    assert "mallory" in said[0]
    listening.close()


# A listener that breaks the protocol: played by a server of our own


class Impostor:
    """Answers streams as the test says, with the compute party's certificate."""

    def __init__(
        self,
        identity: Identity,
        on_frames: Callable[[ServerStream], object],
    ) -> None:
        self.loop = LoopThread("impostor")

        async def frames(stream: ServerStream) -> None:
            try:
                await on_frames(stream)  # type: ignore[misc]
            except LinkLost:
                return

        async def control(stream: ServerStream) -> None:
            try:
                while await stream.read() is not None:
                    pass
            except LinkLost:
                return

        async def start() -> Server:
            server = Server(
                "127.0.0.1:0",
                identity=lambda: identity,
                handlers={FRAMES: frames, CONTROL: control},
            )
            await server.start()
            return server

        self.server: Server | None = self.loop.run(start(), timeout_s=WAIT_S)
        self.port = self.server.port

    def close(self) -> None:
        assert self.server is not None
        self.loop.run(self.server.stop(), timeout_s=WAIT_S)
        self.server = None
        self.loop.close()


def welcome(identity: Identity, hello: handshake.Hello, **changes: object) -> handshake.Welcome:
    values: dict[str, object] = {
        "federation": identity.name.federation,
        "party": identity.name.party,
        "role": identity.name.role,
        "run": hello.run,
        "incarnation": "a" * 32,
        "received": 0,
        "window": 8,
        "nonce": bytes(16),
        "link": bytes(16),
        "certificate": identity.certificate_der,
    }
    return handshake.Welcome(**{**values, **changes})  # type: ignore[arg-type]


def signed(identity: Identity, data: bytes, body: handshake.Welcome) -> bytes:
    raw = handshake.encode_body(body)
    signature = identity.sign(handshake.signed_message(data, body=raw))
    return handshake.encode_ack(handshake.Signed(raw, signature))


def meet(
    trusted: Identity, compute: Identity, answer: Callable[[bytes], bytes]
) -> tuple[Impostor, Callable[[], Conversation]]:
    """An impostor that answers a HELLO with `answer(HELLO)`, and a call that dials it."""

    async def on_frames(stream: ServerStream) -> None:
        data = await stream.read()
        assert data is not None
        await stream.write(answer(data))
        while await stream.read() is not None:
            pass

    impostor = Impostor(compute, on_frames)
    address = f"127.0.0.1:{impostor.port}"
    return impostor, lambda: connect(
        address, identity=trusted, peer=compute.name, run="demo", deadline_s=WAIT_S
    )


def test_garbage_for_an_ack_is_a_wire_error(trusted: Identity, compute: Identity) -> None:
    impostor, call = meet(trusted, compute, lambda _: b"\x00\xffgarbage")
    with pytest.raises(WireError, match="no ACK"):
        call()
    impostor.close()


def test_a_listener_that_never_answers_is_told_at_the_deadline(
    trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitlearn.channel.dialler.HANDSHAKE_S", 0.05)

    async def silent(stream: ServerStream) -> None:
        while await stream.read() is not None:
            pass

    impostor = Impostor(compute, silent)
    with pytest.raises(ChannelError, match=r"no answer to our HELLO within 0\.05 s"):
        connect(f"127.0.0.1:{impostor.port}", identity=trusted, peer=compute.name, deadline_s=0.4)
    impostor.close()


def test_a_listener_that_hangs_up_before_its_ack_is_told_at_the_deadline(
    trusted: Identity, compute: Identity
) -> None:
    async def hang_up(stream: ServerStream) -> None:
        await stream.read()

    impostor = Impostor(compute, hang_up)
    with pytest.raises(ChannelError, match="ended the stream before its ACK"):
        connect(f"127.0.0.1:{impostor.port}", identity=trusted, peer=compute.name, deadline_s=0.4)
    impostor.close()


def test_a_listener_that_does_not_take_our_certificate_is_an_identity_error(
    tmp_path: Path, trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own certificate is as expected, but it trusts another CA; gRPC closes without a word."""
    monkeypatch.setattr("splitlearn.channel.listener._RELOAD_S", 1e6)
    confused = dataclasses.replace(compute, ca=make_authority(tmp_path).ca)
    listening = Listener("127.0.0.1:0", identity=confused, expect_roles=frozenset({Role.TRUSTED}))
    with pytest.raises(IdentityError, match="closed the connection on seeing our certificate"):
        dial(listening, trusted, compute.name)
    listening.close()


def test_an_answer_of_another_version_is_a_peer_error_that_names_both(
    trusted: Identity, compute: Identity
) -> None:
    impostor, call = meet(trusted, compute, lambda _: b"SPLA\x02whatever")
    with pytest.raises(PeerError, match="protocol 2, we speak 1"):
        call()
    impostor.close()


def test_a_signature_over_another_hello_is_an_identity_error(
    trusted: Identity, compute: Identity
) -> None:
    """A recorded ACK cannot be played again: our nonce is in the HELLO."""

    def replay(data: bytes) -> bytes:
        hello = handshake.decode_hello(data)
        return signed(compute, data + b"older", welcome(compute, hello))

    impostor, call = meet(trusted, compute, replay)
    with pytest.raises(IdentityError, match="could not prove"):
        call()
    impostor.close()


def test_an_answer_by_another_party_is_an_identity_error(
    folder: Path, trusted: Identity, compute: Identity
) -> None:
    other = make_identity(folder, "epsilon", Role.COMPUTE)

    def answer(data: bytes) -> bytes:
        return signed(other, data, welcome(other, handshake.decode_hello(data)))

    impostor, call = meet(trusted, compute, answer)
    with pytest.raises(IdentityError, match="wrong name"):
        call()
    impostor.close()


def test_an_answer_that_calls_itself_otherwise_is_an_identity_error(
    trusted: Identity, compute: Identity
) -> None:
    def answer(data: bytes) -> bytes:
        hello = handshake.decode_hello(data)
        return signed(compute, data, welcome(compute, hello, party="zeta"))

    impostor, call = meet(trusted, compute, answer)
    with pytest.raises(IdentityError, match="calls itself compute zeta"):
        call()
    impostor.close()


def test_an_answer_for_another_run_is_a_peer_error(trusted: Identity, compute: Identity) -> None:
    def answer(data: bytes) -> bytes:
        hello = handshake.decode_hello(data)
        return signed(compute, data, welcome(compute, hello, run="other"))

    impostor, call = meet(trusted, compute, answer)
    with pytest.raises(PeerError, match="answered for run 'other', not 'demo'"):
        call()
    impostor.close()


def test_garbage_for_a_frame_is_a_wire_error_for_the_engine(
    trusted: Identity, compute: Identity
) -> None:
    connected = threading.Event()

    async def on_frames(stream: ServerStream) -> None:
        data = await stream.read()
        assert data is not None
        await stream.write(signed(compute, data, welcome(compute, handshake.decode_hello(data))))
        await asyncio.to_thread(connected.wait, WAIT_S)
        await stream.write(b"this is no frame of ours, whatever it is")
        while await stream.read() is not None:
            pass

    impostor = Impostor(compute, on_frames)
    channel = connect(
        f"127.0.0.1:{impostor.port}", identity=trusted, peer=compute.name, deadline_s=WAIT_S
    )
    connected.set()
    with pytest.raises(WireError, match="a frame begins with"):
        channel.receive(timeout_s=WAIT_S)
    with pytest.raises(WireError):
        channel.receive(timeout_s=WAIT_S)
    channel.close()
    impostor.close()


def test_a_busy_listener_is_tried_again(trusted: Identity, compute: Identity) -> None:
    tries: list[int] = []

    def answer(data: bytes) -> bytes:
        tries.append(1)
        if len(tries) < 3:
            return handshake.encode_ack(handshake.Refused("busy", "come back"))
        return signed(compute, data, welcome(compute, handshake.decode_hello(data)))

    impostor, call = meet(trusted, compute, answer)
    call().close(reason="done")
    assert len(tries) >= 3
    impostor.close()


def test_an_unforeseen_failure_reaches_the_engine_as_a_channel_error(
    trusted: Identity, compute: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(_: object) -> None:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr("splitlearn.channel.handshake.encode_hello", explode)
    with pytest.raises(ChannelError, match="KeyError"):
        connect("127.0.0.1:9", identity=trusted, peer=compute.name, deadline_s=WAIT_S)


def test_a_renewed_certificate_is_taken_over_without_a_lost_message(
    listener: Listener,
    folder: Path,
    compute: Identity,
    message: Message,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("splitlearn.channel.dialler._RENEWAL_LOOK_S", 0.05)
    old = make_identity(folder, "theta", Role.TRUSTED)
    dialled = dial(listener, old, compute.name)
    accepted = listener.accept(timeout_s=WAIT_S)
    dialled.send(message(0), deadline_s=WAIT_S)
    new = make_identity(folder, "theta", Role.TRUSTED)
    deadline = time.monotonic() + WAIT_S
    while accepted.authorised is None or accepted.authorised.fingerprint != new.fingerprint:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    dialled.send(message(1), deadline_s=WAIT_S)
    assert [accepted.receive(timeout_s=WAIT_S).seq for _ in range(2)] == [0, 1]
    dialled.close(reason="done")
    accepted.close()


def test_the_memory_channel_has_the_same_three_methods() -> None:
    for name in ("send", "receive", "close"):
        assert hasattr(Conversation, name)
        assert hasattr(MemoryChannel, name)
