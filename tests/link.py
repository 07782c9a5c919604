"""A link to test on: a TCP proxy in userspace with bandwidth, delay, cuts, stalls and a tap.

Per direction a serialising wire (a virtual clock, so a late wake-up delays one chunk and no more)
followed by a fixed delay. In-flight bytes are bounded, which gives the sender back-pressure. The
counters are an independent witness of what crossed. Knows nothing of what it carries.
"""

import asyncio
import contextlib
import socket
from collections import deque
from types import TracebackType

from splitlearn.channel.loop import LoopThread

__all__ = ["Direction", "LinkProxy"]

# Small, so that the kernel does not swallow megabytes that a cut should catch.
_BUFFER_BYTES = 128 * 2**10
_READ_BYTES = 16 * 2**10
_QUEUE_BYTES = 256 * 2**10
_START_S = 5.0


class Direction:
    """One way of the wire, shared by all connections. `carried` counts what was delivered."""

    def __init__(self, *, bits_per_s: float | None, delay_s: float) -> None:
        self.bits_per_s = bits_per_s
        self.delay_s = delay_s
        self.carried = 0
        self.flip_next = False
        self._free_s = 0.0

    @property
    def room_bytes(self) -> int:
        """How much may be on its way."""
        if self.bits_per_s is None:
            return 64 * _QUEUE_BYTES
        return _QUEUE_BYTES + int(self.bits_per_s * self.delay_s / 8)

    def due_s(self, size: int, *, now_s: float) -> float:
        """When `size` bytes that enter now have come out at the other end."""
        takes_s = 8 * size / self.bits_per_s if self.bits_per_s else 0.0
        self._free_s = max(now_s, self._free_s) + takes_s
        return self._free_s + self.delay_s


class LinkProxy:
    """Listens on `port` and carries every connection to `target`. A context manager.

    >>> proxy = LinkProxy(("127.0.0.1", 9), bits_per_s=100e6, delay_s=0.01)
    >>> proxy.close()
    """

    def __init__(
        self, target: tuple[str, int], *, bits_per_s: float | None = None, delay_s: float = 0.0
    ) -> None:
        self.up = Direction(bits_per_s=bits_per_s, delay_s=delay_s)
        self.down = Direction(bits_per_s=bits_per_s, delay_s=delay_s)
        self.connections = 0
        self._target = target
        self._cut_after: int | None = None
        self.is_cut = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = LoopThread("link proxy")
        self.port = self._loop.run(self._start(), timeout_s=_START_S)

    @property
    def address(self) -> str:
        """What a dialler dials."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all connections and every new one, until `heal`."""
        self._loop.run(self._cut(), timeout_s=_START_S)

    def cut_after(self, size: int) -> None:
        """Cut as soon as `size` more bytes went up."""
        self._cut_after = self.up.carried + size

    def stall(self) -> None:
        """Carry nothing more, silently, as if the cable were pulled, until `heal`."""
        self._loop.run(self._set_flowing(False), timeout_s=_START_S)

    def heal(self) -> None:
        """End a cut or a stall. What a stall held up is delivered now."""
        self._loop.run(self._set_flowing(True), timeout_s=_START_S)

    def retarget(self, target: tuple[str, int]) -> None:
        """Carry new connections to another address, as when a peer restarts elsewhere."""
        self._target = target

    def corrupt_up(self) -> None:
        """Flip one bit of the next bytes that go up."""
        self.up.flip_next = True

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(Exception):
            self._loop.run(self._stop(), timeout_s=_START_S)
        self._loop.close()

    def __enter__(self) -> "LinkProxy":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _start(self) -> int:
        self._flowing = asyncio.Event()
        self._flowing.set()
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        listening.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._on_connection, sock=listening)
        port: int = listening.getsockname()[1]
        return port

    async def _stop(self) -> None:
        self._server.close()
        self._drop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        # Aborted transports close their sockets in the loop's next round.
        await asyncio.sleep(0.01)

    async def _cut(self) -> None:
        self.is_cut = True
        self._drop()

    def _drop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _set_flowing(self, flowing: bool) -> None:
        if flowing:
            self.is_cut = False
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if not self.is_cut:
                await self._carry_both(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        there = socket.socket()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        there.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(there, self._target)
        except BaseException:
            there.close()
            raise
        far_reader, far_writer = await asyncio.open_connection(sock=there)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, far_writer, self.up))
                group.create_task(self._carry(far_reader, writer, self.down))
        except* OSError:
            pass
        finally:
            far_writer.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Direction
    ) -> None:
        """One direction of one connection."""
        loop = asyncio.get_running_loop()
        under_way: deque[tuple[float, bytes]] = deque()
        news, room = asyncio.Event(), asyncio.Event()
        size = 0
        ended = False

        async def read() -> None:
            nonlocal size, ended
            try:
                while data := await reader.read(_READ_BYTES):
                    under_way.append((wire.due_s(len(data), now_s=loop.time()), data))
                    size += len(data)
                    news.set()
                    while size >= wire.room_bytes:
                        room.clear()
                        await room.wait()
            finally:
                ended = True
                news.set()

        reading = asyncio.create_task(read())
        try:
            while under_way or not ended:
                if not under_way:
                    news.clear()
                    await news.wait()
                    continue
                due_s, data = under_way.popleft()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                await self._flowing.wait()
                writer.write(self._passed(data, wire))
                await writer.drain()
                size -= len(data)
                room.set()
            reading.result()
            if writer.can_write_eof():
                writer.write_eof()
        finally:
            reading.cancel()

    def _passed(self, data: bytes, wire: Direction) -> bytes:
        """Count what passes; flip a bit or cut if that was asked for."""
        if wire.flip_next:
            wire.flip_next = False
            data = bytes([data[0] ^ 1]) + data[1:]
        wire.carried += len(data)
        if self._cut_after is not None and self.up.carried >= self._cut_after:
            self._cut_after = None
            self.is_cut = True
            self._drop()
        return data
