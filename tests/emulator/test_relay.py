"""The relay between real sockets: what goes in comes out, and faults are the faults asked for.

How exact bandwidth and delay are is measured by tests/bench/link.py.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from splitlearn.emulator.relay import Relay
from splitlearn.emulator.wire import Wire
from splitlearn.errors import ManifestError

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def far_end() -> AsyncIterator[int]:
    """Sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def over(
    work: Callable[[Relay, int], Awaitable[None]],
    *,
    rate: float | None = None,
    delay_s: float = 0.0,
) -> Relay:
    async def run() -> Relay:
        async with far_end() as far:
            up, down = Wire(bits_per_s=rate, delay_s=delay_s), Wire(bits_per_s=rate)
            relay = Relay(("127.0.0.1", far), up=up, down=down)
            port = await relay.start()
            try:
                await work(relay, port)
            finally:
                await relay.stop()
            return relay

    return asyncio.run(asyncio.wait_for(run(), 20))


@asynccontextmanager
async def dial(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("rate", [None, 100e6])
def test_what_goes_in_comes_out_and_is_counted(rate: float | None) -> None:
    sent = secrets.token_bytes(300_000)

    async def work(_: Relay, port: int) -> None:
        async with dial(port) as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            assert await reader.read(-1) == sent

    relay = over(work, rate=rate, delay_s=0.001)
    assert (relay.up.carried, relay.down.carried, relay.connections) == (300_000, 300_000, 1)


def test_a_cut_resets_what_there_is_and_what_comes_until_it_heals() -> None:
    async def work(relay: Relay, port: int) -> None:
        async with dial(port) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            relay.cut_after(1)
            writer.write(b"y")
            assert await gone(reader)
        assert relay.is_cut
        async with dial(port) as (reader, _):
            assert await gone(reader)
        relay.heal()
        await echoes(port)

    over(work)


def test_a_stall_holds_back_and_delivers_when_it_heals() -> None:
    async def work(relay: Relay, port: int) -> None:
        async with dial(port) as (reader, writer):
            relay.stall()
            writer.write(b"late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
            relay.heal()
            assert await reader.readexactly(4) == b"late"

    over(work)


def test_one_bit_is_flipped_on_the_way_up() -> None:
    async def work(relay: Relay, port: int) -> None:
        async with dial(port) as (reader, writer):
            relay.flip()
            writer.write(b"abc")
            assert await reader.readexactly(3) == b"`bc"
            writer.write(b"abc")
            assert await reader.readexactly(3) == b"abc"

    over(work)


def test_a_target_that_is_not_there_is_a_reset_and_a_new_one_is_found() -> None:
    async def work(relay: Relay, port: int) -> None:
        async with far_end() as far:
            relay.retarget(("127.0.0.1", 1))
            async with dial(port) as (reader, _):
                assert await gone(reader)
            relay.retarget(("127.0.0.1", far))
            await echoes(port)

    over(work)


async def gone(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends with no more than a byte that was under way."""
    try:
        return len(await reader.read(-1)) <= 1
    except OSError:
        return True


async def echoes(port: int) -> None:
    async with dial(port) as (reader, writer):
        writer.write(b"z")
        assert await reader.readexactly(1) == b"z"


def test_a_port_that_is_taken_is_a_manifest_error() -> None:
    async def work(relay: Relay, port: int) -> None:
        second = Relay(("127.0.0.1", 1), up=Wire(), down=Wire())
        with pytest.raises(ManifestError, match="choose another address"):
            await second.start(port=port)

    over(work)
