"""A TCP relay that behaves like a long link: bandwidth, delay, cuts, stalls, flipped bits.

Needs no privilege and knows nothing of what it carries: TLS stays closed to it. All connections
share one wire in each direction. Its counters are an independent witness of what crossed.
"""

import asyncio
import socket
from collections import deque

from splitlearn.emulator.wire import Wire
from splitlearn.errors import ManifestError

__all__ = ["Relay"]

# Small, so that the kernel does not swallow megabytes that a cut should catch.
_BUFFER_BYTES = 128 * 2**10
# Selectors wake up to a millisecond late, so sleeps end half a millisecond early: right on average.
_EARLY_S = 0.0005
_STOP_S = 1.0


class Relay:
    """Carries every connection to `target`, as "host" and port. Make and use it in one event loop.

    up: from whoever dials; down: back. dialled: set once the first connection has come.
    """

    def __init__(self, target: tuple[str, int], *, up: Wire, down: Wire) -> None:
        self.up, self.down = up, down
        self.connections = 0
        self.dialled = asyncio.Event()
        self.is_cut = False
        self._target = target
        self._cut_at: int | None = None
        self._flip_next = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Begin to listen; the port. ManifestError if the address cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        try:
            listening.bind((host, port))
        except OSError as error:
            listening.close()
            raise ManifestError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another address"
            ) from None
        self._server = await asyncio.start_server(
            self._on_connection, sock=listening, limit=self.up.piece_bytes
        )
        found: int = listening.getsockname()[1]
        return found

    async def stop(self) -> None:
        """End all connections and listen no more."""
        if self._server is not None:
            self._server.close()
        self._drop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        # Aborted transports close their sockets in the loop's next round.
        await asyncio.sleep(0.01)

    def cut(self) -> None:
        """Reset all connections and every new one, until `heal`."""
        self.is_cut = True
        self._drop()

    def cut_after(self, size: int) -> None:
        """Cut as soon as `size` more bytes went up."""
        self._cut_at = self.up.carried + size

    def stall(self) -> None:
        """Carry nothing more, silently, as if the cable were pulled, until `heal`."""
        self._flowing.clear()

    def heal(self) -> None:
        """End a cut or a stall. What a stall held up is delivered now."""
        self.is_cut = False
        self._flowing.set()

    def flip(self) -> None:
        """Flip one bit of the next bytes that go up."""
        self._flip_next = True

    def retarget(self, target: tuple[str, int]) -> None:
        """Carry new connections to another address, as when a peer restarts elsewhere."""
        self._target = target

    def _drop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.dialled.set()
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
        host, port = self._target
        there = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        there.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(there, (host, port))
        except BaseException:
            there.close()
            raise
        far_reader, far_writer = await asyncio.open_connection(
            sock=there, limit=self.down.piece_bytes
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, far_writer, self.up))
                group.create_task(self._carry(far_reader, writer, self.down))
        except* OSError:
            pass
        finally:
            far_writer.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire
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
                while data := await reader.read(wire.piece_bytes):
                    under_way.append((wire.due_s(len(data), now_s=loop.time()), data))
                    size += len(data)
                    news.set()
                    while size >= wire.room_bytes:
                        room.clear()
                        await room.wait()
                    if wait_s := wire.wait_s(now_s=loop.time()):
                        await asyncio.sleep(wait_s)
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
                if (early_s := due_s - loop.time() - _EARLY_S) > 0:
                    await asyncio.sleep(early_s)
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

    def _passed(self, data: bytes, wire: Wire) -> bytes:
        """Count what passes; flip a bit or cut if that was asked for."""
        if self._flip_next and wire is self.up:
            self._flip_next = False
            data = bytes([data[0] ^ 1]) + data[1:]
        wire.carried += len(data)
        if self._cut_at is not None and self.up.carried >= self._cut_at:
            self._cut_at = None
            self.cut()
        return data
