"""Streams over gRPC and mutual TLS: how they end, and what a server knows of its dialler."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from splitlearn.channel.loop import LoopThread
from splitlearn.channel.streams import CONTROL, FRAMES, Connection, LinkLost, Server, ServerStream
from splitlearn.errors import ManifestError
from splitlearn.identity import Identity
from splitlearn.roles import Role
from tests.federation import make_identity

T = TypeVar("T")
WAIT_S = 20.0


def with_server(
    compute: Identity,
    handler: Callable[[ServerStream], Coroutine[object, object, None]],
    talk: Callable[[Server], Coroutine[object, object, T]],
) -> T:
    """Serve `handler`, run `talk`, end both."""
    loop = LoopThread("streams")

    async def run() -> T:
        server = Server(
            "127.0.0.1:0",
            identity=lambda: compute,
            handlers={FRAMES: handler, CONTROL: handler},
        )
        await server.start()
        try:
            return await talk(server)
        finally:
            await server.stop()

    try:
        return loop.run(run(), timeout_s=WAIT_S)
    finally:
        loop.close()


async def echo(stream: ServerStream) -> None:
    try:
        while (message := await stream.read()) is not None:
            await stream.write(message)
    except LinkLost:
        return


def dial(server: Server, trusted: Identity, compute: Identity) -> Connection:
    address = f"127.0.0.1:{server.port}"
    return Connection(address, identity=trusted, peer=compute.name, method=FRAMES)


def test_messages_go_there_and_back_until_the_end_of_the_stream(
    trusted: Identity, compute: Identity
) -> None:
    async def talk(server: Server) -> list[bytes | None]:
        connection = dial(server, trusted, compute)
        await connection.write(b"one")
        got = [await connection.read()]
        await connection.write(bytes(256 * 2**10))
        await connection._call.done_writing()
        got += [await connection.read(), await connection.read()]
        await connection.close()
        return got

    assert with_server(compute, echo, talk) == [b"one", bytes(256 * 2**10), None]


def test_the_server_knows_the_diallers_certificate_and_tls_version(
    trusted: Identity, compute: Identity
) -> None:
    seen: list[tuple[bytes, str, str]] = []

    async def look(stream: ServerStream) -> None:
        seen.append((stream.certificate_der(), stream.tls, stream.address))

    async def talk(server: Server) -> None:
        connection = dial(server, trusted, compute)
        assert await connection.read() is None
        await connection.close()

    with_server(compute, look, talk)
    der, tls, address = seen[0]
    assert der == trusted.certificate_der
    assert tls == "TLSv1.3"
    assert address.startswith("ipv4:127.0.0.1:")


def test_nobody_there_is_a_lost_link_with_a_reason(trusted: Identity, compute: Identity) -> None:
    async def talk(server: Server) -> None:
        await server.stop()
        connection = dial(server, trusted, compute)
        with pytest.raises(LinkLost, match="refused"):
            await connection.read()
        with pytest.raises(LinkLost, match="refused"):
            await connection.write(b"again")
        await connection.close()

    with_server(compute, echo, talk)


def test_a_stopped_server_is_a_lost_link_for_reader_and_writer(
    trusted: Identity, compute: Identity
) -> None:
    async def talk(server: Server) -> None:
        connection = dial(server, trusted, compute)
        await connection.write(b"hello")
        await connection.read()
        reading = asyncio.create_task(connection.read())
        await server.stop()
        with pytest.raises(LinkLost):
            await reading
        with pytest.raises(LinkLost):
            await connection.write(b"more")
        await connection.close()

    with_server(compute, echo, talk)


def test_a_vanished_dialler_is_a_lost_link_for_the_server(
    trusted: Identity, compute: Identity
) -> None:
    ended = asyncio.Event()

    async def wait(stream: ServerStream) -> None:
        await stream.write(b"hello")
        try:
            await stream.read()
        finally:
            ended.set()

    async def talk(server: Server) -> None:
        connection = dial(server, trusted, compute)
        await connection.read()
        await connection.close()
        await asyncio.wait_for(ended.wait(), WAIT_S)

    with_server(compute, wait, talk)


def test_our_own_cancelling_is_no_lost_link(trusted: Identity, compute: Identity) -> None:
    async def talk(server: Server) -> None:
        connection = dial(server, trusted, compute)
        await connection.write(b"hello")
        await connection.read()
        reading = asyncio.create_task(connection.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await connection.close()

    with_server(compute, echo, talk)


def test_another_name_than_the_one_dialled_is_a_lost_link(
    folder: Path, trusted: Identity, compute: Identity
) -> None:
    other = make_identity(folder, "nu", Role.COMPUTE)

    async def talk(server: Server) -> None:
        connection = dial(server, trusted, other)
        with pytest.raises(LinkLost, match="Hostname"):
            await connection.read()
        await connection.close()

    with_server(compute, echo, talk)


def test_an_address_that_cannot_be_had_is_a_manifest_error(compute: Identity) -> None:
    async def talk(server: Server) -> None:
        with pytest.raises(ManifestError, match="cannot listen on"):
            Server(f"127.0.0.1:{server.port}", identity=lambda: compute, handlers={})

    with_server(compute, echo, talk)
