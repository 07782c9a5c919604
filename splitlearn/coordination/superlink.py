"""The SuperLink in this process, behind its two doors: others' on TLS, our own user's on loopback.

Its state is one sqlite file in a folder of ours, so it may be killed and started again. Rounds' settings
and reports pass here and stay there in the clear; ids, tensors and text never come.
"""

import asyncio
import importlib
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from splitlearn.coordination.claims import claimed
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.guard import CERTIFICATE, FleetDoor, LocalDoor
from splitlearn.coordination.home import at_home, point_flwr
from splitlearn.coordination.members import Members
from splitlearn.coordination.version import check_version
from splitlearn.errors import ManifestError
from splitlearn.identity import Identity, files
from splitlearn.identity.tls import server_context
from splitlearn.roles import Role

__all__ = ["CONTROL_PORT", "FLEET_PORT", "SuperLink"]

FLEET_PORT = 8471
CONTROL_PORT = 8472
LOOPBACK = "127.0.0.1"
# How soon a longer deny-list that lies in our folder ends a node's membership.
LOOK_S = 2.0
# Hundreds of generators at one coordinator are out of this system's reach; a flood is not.
_MAX_CONNECTIONS = 512
_PARTING_S = 2
# Of a request's headers, which are read before a door is asked; Flower's take about 1 KiB.
_MAX_HEAD_BYTES = 32 * 2**10


class SuperLink:
    """Serves the federation of `identity`, a discriminator's; port 0 takes a free one.

    folder: for the database and Flower's own things, 0700. report: one line per event, for a terminal.
    Raises ManifestError (role, ports, folder, Flower's version).
    """

    def __init__(
        self,
        identity: Identity,
        *,
        folder: Path,
        host: str = LOOPBACK,
        port: int = FLEET_PORT,
        control_port: int = CONTROL_PORT,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        if identity.name.role is not Role.DISCRIMINATOR:
            raise ManifestError(
                f"{identity.folder} is {identity.name.uri}; a coordinator needs the role discriminator"
            )
        check_version()
        self._report = report
        self._fresh = FreshIdentity(identity.folder)
        self._folder = files.make_folder(folder)
        self._sockets: list[socket.socket] = []
        with ExitStack() as held:
            held.enter_context(
                claimed(
                    folder / ".running",
                    otherwise=f"another coordinator works in {folder}; end it, or choose another folder",
                )
            )
            for each in ((host, port), (LOOPBACK, control_port)):
                self._sockets.append(held.enter_context(_listen(*each)))
            self._held = held.pop_all()
        fleet, control = (each.getsockname()[1] for each in self._sockets)
        self.address = f"[{host}]:{fleet}" if ":" in host else f"{host}:{fleet}"
        self.control_address = f"{LOOPBACK}:{control}"
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self.members: Members | None = None

    def serve_forever(self) -> None:
        """Serve until `close` is called from another thread, or until Ctrl-C."""
        try:
            home = self._folder / "flower"
            with at_home(home):
                point_flwr(home, address=self.control_address)
                asyncio.run(self._serve())
        finally:
            self._failed = sys.exception()
            self._held.close()
            self._ready.set()

    def start(self) -> "SuperLink":
        """Serve in a background thread; return self when both doors are open."""
        self._thread = threading.Thread(target=self.serve_forever, name="superlink", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self.members is None:
            raise ManifestError(f"the SuperLink did not start in {self._folder}: {self._failed}")
        return self

    def close(self) -> None:
        """Stop serving and free the ports."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._held.close()

    def __enter__(self) -> "SuperLink":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _serve(self) -> None:
        database = self._folder / "superlink.sqlite"
        _make_private(database)
        members, inner, outer = self._servers(database)
        tasks = [asyncio.create_task(self._run(inner, self._sockets[1]))]
        try:
            await _started(inner, tasks[0])
            tasks.append(asyncio.create_task(self._run(outer, self._sockets[0])))
            await _started(outer, tasks[1])
            self.members = members
            self._ready.set()
            while not self._stop.is_set():
                await asyncio.to_thread(members.shut_out, self._fresh.now()[1])
                await asyncio.to_thread(self._stop.wait, LOOK_S)
        finally:
            self._stop.set()
            # Others' door first: nobody new comes in while the rest goes down.
            outer.should_exit = inner.should_exit = True
            await asyncio.gather(*tasks)

    def _servers(self, database: Path) -> tuple[Members, "_Server", "_Server"]:
        # Reads the environment, which is set by now, and takes seconds.
        flower = importlib.import_module("splitlearn.coordination.flower_state")
        host, port = self._sockets[1].getsockname()
        app, nodes = flower.make_app(database=database, host=host, port=port)
        members = Members(nodes, report=self._report)
        door = FleetDoor(app, fresh=self._fresh, arrive=members.arrive, report=self._report)
        inner = _Server(_config(LocalDoor(app, report=self._report), lifespan="on"))
        outer = _Server(_config(door, lifespan="off", http=_ShowingCertificate))
        outer.config.load()
        outer.config.ssl = self._context()
        return members, inner, outer

    def _context(self) -> ssl.SSLContext:
        identity, _ = self._fresh.now()
        context = server_context(ca_pem=identity.ca_pem, folder=identity.folder)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._fresh.presented_by(context)

    async def _run(self, server: "_Server", listener: socket.socket) -> None:
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that leaves Ctrl-C to whoever started it: here are two in one loop."""

    def capture_signals(self) -> Any:
        """No signal handlers."""
        return nullcontext()


class _ShowingCertificate(H11Protocol):
    """Hands each request the certificate that its connection showed over TLS."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note the certificate (DER) where the door looks for it."""
        shown = transport.get_extra_info("ssl_object")
        der = shown.getpeercert(binary_form=True) if shown is not None else None
        self.app_state = {**self.app_state, CERTIFICATE: der}
        super().connection_made(transport)


def _config(app: Any, *, lifespan: Any, http: Any = H11Protocol) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan=lifespan,
        loop="asyncio",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="warning",
        limit_concurrency=_MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_graceful_shutdown=_PARTING_S,
    )


async def _started(server: _Server, task: "asyncio.Task[None]") -> None:
    while not server.started:
        if task.done():
            task.result()
            raise ManifestError("the SuperLink ended while it started; its lines above say why")
        await asyncio.sleep(0.02)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ManifestError(f"the coordinator cannot listen on {host}:{port}: {error}") from None
    return listener


def _make_private(database: Path) -> None:
    """Have the file exist with 0600; sqlite gives its other files the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, files.PRIVATE))
    if files.mode_of(database) & 0o077:
        raise ManifestError(f"{database} is open to other users; run chmod 600 {database}")
