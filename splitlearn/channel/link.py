"""One live link: a stream of frames and a stream of control, pumped into and out of a mailbox.

A link lives from its handshake until one of its streams ends; what comes after, another link or the
end, is its owner's to decide. It runs in its owner's loop and waits only for events.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence

from splitlearn.channel import control
from splitlearn.channel.handshake import MAX_SENTENCE_CHARACTERS, quoted
from splitlearn.channel.mailbox import Mailbox
from splitlearn.channel.streams import LinkLost, Stream
from splitlearn.errors import PeerError
from splitlearn.wire.frames import Assembler, chunks
from splitlearn.wire.limits import CHUNK_BYTES

__all__ = ["FAREWELL_S", "MAX_PROBES", "PING_S", "SILENCE_S", "Link", "Tally"]

# A link on which nothing at all was heard for SILENCE_S is dead; a ping every PING_S asks for a sign.
# Together 10 s: what a party may take to notice.
PING_S = 2.0
SILENCE_S = 8.0

# How long an acknowledgement may wait for company. Credit is given back earlier when half of the
# window waits, so this bounds only how long the last frames are kept.
ACK_DELAY_S = 0.05

# Probes under way at once: 2 MiB of zeros, which take 80 ms at 200 Mbit/s.
MAX_PROBES = 128

# How long a bye waits for the peer to hang up.
FAREWELL_S = 3.0

# The control stream follows the frames' handshake at once.
_CONTROL_S = 5.0


class Tally:
    """Bytes that one conversation moved over all its links. Written by its loop, read by anybody.

    Bytes are counted before they are written: a write that is awaited may return after the peer has them.
    """

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class Link:
    """Pumps one mailbox over one pair of streams. Make it and use it in one loop."""

    def __init__(self, mailbox: Mailbox, *, frames: Stream, tally: Tally) -> None:
        self._mailbox = mailbox
        self._frames = frames
        self._tally = tally
        self._frame_wake = asyncio.Event()
        self._control_wake = asyncio.Event()
        self._over = asyncio.Event()
        self._bye: control.Bye | None = None
        self._pong: int | None = None
        self._pings = 0
        self._pings_due = 0
        self._probes: deque[control.Probe] = deque()
        self._owed: deque[control.Probe] = deque()
        self._asked: deque[control.Probe] = deque()
        self._answers: asyncio.Queue[float] = asyncio.Queue()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()

    def wake_frames(self) -> None:
        """There may be a frame to write."""
        self._frame_wake.set()

    def wake_acks(self) -> None:
        """There may be an acknowledgement to write."""
        self._control_wake.set()

    async def run(self, control_stream: Awaitable[Stream]) -> None:
        """Pump until the conversation ends (returns) or the link does (LinkLost).

        Raises PeerError, after telling the peer, if the peer broke the rules.
        """
        opened = asyncio.ensure_future(control_stream)
        talking = asyncio.create_task(self._control(opened))
        tasks = [
            talking,
            asyncio.create_task(self._write_frames()),
            asyncio.create_task(self._read_frames()),
            asyncio.create_task(self._tick()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = _worst(done)
            if isinstance(error, PeerError):
                self._mailbox.fail(error)
                await self._complain(str(error), opened, talking)
        finally:
            opened.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(opened, *tasks, return_exceptions=True)
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            self._over.set()
        if error is not None:
            raise error

    async def leave(self, reason: str | None) -> None:
        """Say bye and wait until the peer hangs up, for FAREWELL_S at most."""
        self._bye = control.Bye(None if reason is None else reason[:MAX_SENTENCE_CHARACTERS])
        self._control_wake.set()
        try:
            await asyncio.wait_for(self._over.wait(), FAREWELL_S)
        except TimeoutError:
            return

    async def probe(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        """Send probes back to back, so many zeros there and so many back each; seconds from now until
        each answer. One caller at a time, before a run or between two."""
        began_s = self._loop.time()
        for i, (there, back) in enumerate(sizes):
            self._asked.append(control.Probe(i, back, bytes(there)))
        self._probes.extend(self._asked)
        self._control_wake.set()
        return [await self._answers.get() - began_s for _ in sizes]

    async def _write_frames(self) -> None:
        while True:
            raw = self._mailbox.next_frame()
            if raw is None:
                await self._frame_wake.wait()
                self._frame_wake.clear()
            elif len(raw) <= CHUNK_BYTES:
                self._tally.sent += len(raw)
                await self._frames.write(raw)
            else:
                for chunk in chunks(raw):
                    self._tally.sent += len(chunk)
                    await self._frames.write(bytes(chunk))

    async def _read_frames(self) -> None:
        assembler = Assembler()
        while True:
            chunk = await self._frames.read()
            if chunk is None:
                raise LinkLost("the peer ended the stream of frames")
            self._heard(chunk)
            frame = assembler.push(chunk)
            if frame is not None:
                self._mailbox.arrive(frame)
                if self._ack_timer is None:
                    self._ack_timer = self._loop.call_later(ACK_DELAY_S, self._ack_late)

    async def _control(self, opened: asyncio.Future[Stream]) -> None:
        try:
            stream = await asyncio.wait_for(asyncio.shield(opened), _CONTROL_S)
        except TimeoutError:
            raise LinkLost(f"no control stream within {_CONTROL_S:g} s") from None
        writing = asyncio.create_task(self._write_control(stream))
        try:
            await self._read_control(stream)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write_control(self, stream: Stream) -> None:
        # Once more, for the one before may have been lost with its link.
        taken = self._mailbox.ack(again=True)
        while True:
            if taken is not None:
                await self._say(stream, control.Ack(taken))
            if self._pong is not None:
                number, self._pong = self._pong, None
                await self._say(stream, control.Pong(number))
            if self._pings < self._pings_due:
                self._pings = self._pings_due
                await self._say(stream, control.Ping(self._pings))
            while self._probes:
                await self._say(stream, self._probes.popleft())
            while self._owed:
                owed = self._owed.popleft()
                await self._say(stream, control.Probed(owed.number, bytes(owed.wanted)))
            if self._bye is not None:
                await self._say(stream, self._bye)
                return
            await self._control_wake.wait()
            self._control_wake.clear()
            taken = self._mailbox.ack()

    async def _read_control(self, stream: Stream) -> None:
        """Until a bye. A writer that broke shows here too: the stream is the same."""
        while True:
            data = await stream.read()
            if data is None:
                raise LinkLost("the peer ended the control stream")
            self._heard(data)
            match message := control.decode(data):
                case control.Ack(taken):
                    self._mailbox.acked(taken)
                case control.Ping(number):
                    self._pong = number
                    self._control_wake.set()
                case control.Pong(number):
                    if number > self._pings:
                        raise PeerError(
                            f"{self._mailbox.peer} answers ping {number} of {self._pings}"
                        )
                case control.Probe():
                    self._owe(message)
                case control.Probed():
                    self._answered(message)
                case control.Bye(None):
                    self._mailbox.end()
                    return
                case control.Bye(str(reason)):
                    peer = self._mailbox.peer
                    self._mailbox.fail(PeerError(f"{peer} says: {quoted(reason)}"))
                    return

    def _owe(self, probe: control.Probe) -> None:
        if len(self._owed) >= MAX_PROBES:
            raise PeerError(f"{self._mailbox.peer} sends probes and does not take the answers")
        self._owed.append(probe)
        self._control_wake.set()

    def _answered(self, answer: control.Probed) -> None:
        asked = self._asked.popleft() if self._asked else None
        if asked is None or (asked.number, asked.wanted) != (answer.number, len(answer.zeros)):
            raise PeerError(f"{self._mailbox.peer} answers a probe that was not sent")
        self._answers.put_nowait(self._loop.time())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            if self._loop.time() - self._heard_s > SILENCE_S:
                raise LinkLost(f"the peer was not heard for {SILENCE_S:g} s")
            self._pings_due += 1
            self._control_wake.set()

    async def _say(self, stream: Stream, message: control.Control) -> None:
        data = control.encode(message)
        self._tally.sent += len(data)
        await stream.write(data)

    async def _complain(
        self, sentence: str, opened: asyncio.Future[Stream], talking: asyncio.Task[None]
    ) -> None:
        """Tell the peer why this ends and let it hang up. It may well not listen."""
        if not talking.done():
            self._bye = control.Bye(sentence[:MAX_SENTENCE_CHARACTERS])
            self._control_wake.set()
            await asyncio.wait({talking}, timeout=FAREWELL_S)
        elif opened.done() and not opened.exception():
            talking = asyncio.create_task(self._last_word(opened.result(), sentence))
            await asyncio.wait({talking}, timeout=FAREWELL_S)
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    async def _last_word(self, stream: Stream, sentence: str) -> None:
        await self._say(stream, control.Bye(sentence[:MAX_SENTENCE_CHARACTERS]))
        while await stream.read() is not None:
            pass

    def _heard(self, data: bytes) -> None:
        self._tally.received += len(data)
        self._heard_s = self._loop.time()

    def _ack_late(self) -> None:
        self._ack_timer = None
        if self._mailbox.ack_soon():
            self._control_wake.set()


def _worst(done: set[asyncio.Task[None]]) -> BaseException | None:
    """What ended the tasks that ended: a broken rule before a broken link, None for a bye."""
    errors = [error for task in done if (error := task.exception()) is not None]
    broken_rules = [error for error in errors if isinstance(error, PeerError)]
    return next(iter(broken_rules or errors), None)
