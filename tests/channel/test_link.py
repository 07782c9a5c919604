"""One link over streams that the test plays: what is written, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from splitlearn.channel import Released, control, link
from splitlearn.channel.link import Link, Tally
from splitlearn.channel.mailbox import Mailbox
from splitlearn.channel.streams import LinkLost
from splitlearn.errors import ChannelError, PeerError, WireError

Message = Callable[..., Released]
WAIT_S = 20.0


class Played:
    """A stream in memory. `peer` is fed by the test; `written` is what the link wrote."""

    def __init__(self) -> None:
        self.peer: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        # A write returns when gRPC likes; the peer may have had its bytes for long.
        self.returns = asyncio.Event()
        self.returns.set()

    async def read(self) -> bytes | None:
        item = await self.peer.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def write(self, message: bytes) -> None:
        self.written.put_nowait(message)
        await self.returns.wait()


class Stage:
    """A link between a mailbox and two played streams."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.box = Mailbox(
            "compute.beta",
            window=4,
            on_frame=lambda: loop.call_soon_threadsafe(self.link.wake_frames),
            on_ack=lambda: loop.call_soon_threadsafe(self.link.wake_acks),
        )
        self.box.attach(received=0, window=4)
        self.frames = Played()
        self.control = Played()
        self.tally = Tally()
        self.link = Link(self.box, frames=self.frames, tally=self.tally)
        self.running = asyncio.create_task(self.link.run(self.opened()))

    async def opened(self) -> Played:
        return self.control

    async def said(self) -> control.Control:
        return control.decode(await asyncio.wait_for(self.control.written.get(), WAIT_S))

    async def ended(self) -> None:
        await asyncio.wait_for(self.running, WAIT_S)


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = Stage()
        try:
            await scene(stage)
        finally:
            stage.running.cancel()
            await asyncio.gather(stage.running, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_frame_is_written_in_chunks_and_counted(message: Message) -> None:
    async def scene(stage: Stage) -> None:
        released = message(0, size=600_000)
        stage.box.put(released, deadline_s=0)
        parts = [await stage.frames.written.get() for _ in range(3)]
        assert b"".join(parts) == released.raw
        assert max(map(len, parts)) == 256 * 2**10
        assert stage.tally.sent >= len(released.raw)

    play(scene)


def test_what_the_peer_has_is_counted_though_the_write_of_it_has_not_returned(
    message: Message,
) -> None:
    async def scene(stage: Stage) -> None:
        stage.control.returns.clear()
        stage.frames.returns.clear()
        said = len(await stage.control.written.get())
        released = message(0, size=100)
        stage.box.put(released, deadline_s=0)
        assert await stage.frames.written.get() == released.raw
        assert stage.tally.sent == said + len(released.raw)

    play(scene)


def test_the_first_word_of_control_repeats_what_was_taken() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.said() == control.Ack(0)

    play(scene)


def test_a_frame_in_chunks_arrives_whole_and_is_acknowledged_when_taken(message: Message) -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.said() == control.Ack(0)
        raw = message(5, size=300_000).raw
        stage.frames.peer.put_nowait(raw[: 256 * 2**10])
        stage.frames.peer.put_nowait(raw[256 * 2**10 :])
        frame = await asyncio.to_thread(stage.box.take, timeout_s=WAIT_S)
        assert frame.raw == raw
        assert await stage.said() == control.Ack(1)

    play(scene)


def test_an_acknowledgement_frees_what_was_kept(message: Message) -> None:
    async def scene(stage: Stage) -> None:
        stage.box.put(message(0), deadline_s=0)
        await stage.frames.written.get()
        stage.control.peer.put_nowait(control.encode(control.Ack(1)))
        assert await asyncio.to_thread(stage.box.drain, timeout_s=WAIT_S)

    play(scene)


def test_a_ping_is_answered() -> None:
    async def scene(stage: Stage) -> None:
        await stage.said()
        stage.control.peer.put_nowait(control.encode(control.Ping(9)))
        assert await stage.said() == control.Pong(9)

    play(scene)


def test_silence_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PING_S", 0.01)
    monkeypatch.setattr(link, "SILENCE_S", 0.05)

    async def scene(stage: Stage) -> None:
        await stage.said()
        assert await stage.said() == control.Ping(1)
        with pytest.raises(LinkLost, match=r"not heard for 0\.05 s"):
            await stage.ended()

    play(scene)


def test_pongs_keep_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PING_S", 0.01)
    monkeypatch.setattr(link, "SILENCE_S", 0.2)

    async def scene(stage: Stage) -> None:
        await stage.said()
        for number in range(1, 31):
            assert await stage.said() == control.Ping(number)
            stage.control.peer.put_nowait(control.encode(control.Pong(number)))
        assert not stage.running.done()

    play(scene)


def test_a_pong_that_nobody_asked_for_breaks_the_rules() -> None:
    async def scene(stage: Stage) -> None:
        await stage.said()
        stage.control.peer.put_nowait(control.encode(control.Pong(3)))
        # The control stream itself failed: the last word is said on it, and waits for its end.
        assert await stage.said() == control.Bye("compute.beta answers ping 3 of 0")
        stage.control.peer.put_nowait(control.encode(control.Ping(1)))
        stage.control.peer.put_nowait(None)
        with pytest.raises(PeerError, match="answers ping 3 of 0"):
            await stage.ended()

    play(scene)


def test_a_good_bye_ends_the_conversation() -> None:
    async def scene(stage: Stage) -> None:
        stage.control.peer.put_nowait(control.encode(control.Bye(None)))
        await stage.ended()
        with pytest.raises(ChannelError, match="closed the channel"):
            stage.box.take(timeout_s=0)

    play(scene)


def test_a_bye_with_a_reason_is_an_abort() -> None:
    async def scene(stage: Stage) -> None:
        stage.control.peer.put_nowait(control.encode(control.Bye("no\nmore")))
        await stage.ended()
        with pytest.raises(PeerError, match=r"compute\.beta says: no\?more"):
            stage.box.take(timeout_s=0)

    play(scene)


def test_our_bye_waits_for_the_peer_to_hang_up() -> None:
    async def scene(stage: Stage) -> None:
        await stage.said()
        leaving = asyncio.create_task(stage.link.leave("enough"))
        assert await stage.said() == control.Bye("enough")
        stage.frames.peer.put_nowait(None)
        with pytest.raises(LinkLost):
            await stage.ended()
        await asyncio.wait_for(leaving, WAIT_S)

    play(scene)


def test_our_bye_waits_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FAREWELL_S", 0.01)

    async def scene(stage: Stage) -> None:
        await asyncio.wait_for(stage.link.leave(None), WAIT_S)
        assert not stage.running.done()

    play(scene)


def test_illegal_bytes_are_a_wire_error_and_the_peer_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "FAREWELL_S", 0.05)

    async def scene(stage: Stage) -> None:
        await stage.said()
        stage.frames.peer.put_nowait(b"x" * 50)
        with pytest.raises(WireError, match="a frame begins with"):
            await stage.ended()
        last = await stage.said()
        assert isinstance(last, control.Bye)
        assert "a frame begins with" in (last.reason or "")
        with pytest.raises(WireError):
            stage.box.take(timeout_s=0)

    play(scene)


@pytest.mark.parametrize("which", ["frames", "control"])
@pytest.mark.parametrize("how", [None, LinkLost("Socket closed")], ids=["ended", "broken"])
def test_either_stream_ends_the_link(which: str, how: Exception | None) -> None:
    async def scene(stage: Stage) -> None:
        await stage.said()
        getattr(stage, which).peer.put_nowait(how)
        with pytest.raises(LinkLost, match="Socket closed" if how else "peer ended the"):
            await stage.ended()

    play(scene)


def test_a_control_stream_that_does_not_come_ends_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "_CONTROL_S", 0.01)

    class Alone(Stage):
        async def opened(self) -> Played:
            await asyncio.Event().wait()
            raise AssertionError

    async def run() -> None:
        stage = Alone()
        with pytest.raises(LinkLost, match=r"no control stream within 0\.01 s"):
            await stage.ended()

    asyncio.run(run())


def test_a_probe_is_answered_with_as_many_zeros_as_it_wants() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.said() == control.Ack(0)
        stage.control.peer.put_nowait(control.encode(control.Probe(7, 5, bytes(3))))
        assert await stage.said() == control.Probed(7, bytes(5))

    play(scene)


def test_probes_go_out_back_to_back_and_their_answers_have_times() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.said() == control.Ack(0)
        probing = asyncio.create_task(stage.link.probe([(2, 1), (0, 0)]))
        assert await stage.said() == control.Probe(0, 1, bytes(2))
        assert await stage.said() == control.Probe(1, 0, b"")
        for answer in (control.Probed(0, bytes(1)), control.Probed(1, b"")):
            stage.control.peer.put_nowait(control.encode(answer))
        times = await asyncio.wait_for(probing, WAIT_S)
        assert 0 <= times[0] <= times[1]

    play(scene)


@pytest.mark.parametrize("answers", [[], [control.Probe(0, 1, b"")]])
def test_an_answer_to_no_probe_breaks_the_rules(answers: list[control.Control]) -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.said() == control.Ack(0)
        probing = [asyncio.create_task(stage.link.probe([(0, a.wanted)])) for a in answers]
        for _ in answers:
            await stage.said()
        stage.control.peer.put_nowait(control.encode(control.Probed(0, b"")))
        with pytest.raises(PeerError, match="a probe that was not sent"):
            await stage.ended()
        for task in probing:
            task.cancel()
        await asyncio.gather(*probing, return_exceptions=True)

    play(scene)


def test_a_peer_that_probes_and_never_listens_is_sent_away() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.said() == control.Ack(0)
        for i in range(link.MAX_PROBES + 1):
            stage.control.peer.put_nowait(control.encode(control.Probe(i, 0, b"")))
        with pytest.raises(PeerError, match="does not take the answers"):
            await stage.ended()

    play(scene)
