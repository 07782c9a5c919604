"""Keeps one node alive: asks whether the coordinator would take it, runs it, and starts it again.

A coordinator that is away is waited for. One that is not ours, that denies us, that ships code, or whose
clock is not ours ends it with a sentence.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from splitlearn.coordination.claims import claimed
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.health import ask_health, check_clock
from splitlearn.coordination.home import settings as flower_settings
from splitlearn.coordination.orders import Ending, Orders, read_ending, write_orders
from splitlearn.coordination.version import check_version
from splitlearn.errors import ChannelError, ManifestError, PeerError
from splitlearn.identity import Identity, files
from splitlearn.identity.tls import parse_address
from splitlearn.roles import Role

__all__ = ["SuperNode"]

# Seconds between two looks at whether the node's process still runs, or should end.
_LOOK_S = 0.2
# Between two looks for a coordinator that is away; and between two lives of the node's process.
_AWAY_S = 2.0
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 15.0
# A node that lived as long had no trouble in starting.
_SETTLED_S = 60.0
# Flower gives its own exit handlers five seconds.
_PARTING_S = 7.0


@dataclass
class SuperNode:
    """The node of `identity`, a generator's, at the coordinator on `address` ("host:port").

    settings: the file that the ClientApp reads; processes: how many share a batch there, 0 for what the
    file says. folder: for Flower's things, 0700. party: the
    coordinator's name, where it alone may answer. environment: more of it for the node's processes.
    report: one line per event, for a terminal.
    """

    identity: Identity
    address: str
    settings: Path
    folder: Path
    party: str | None = None
    processes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[str], None] = lambda _line: None
    _away: bool = field(default=False, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def run(self) -> None:
        """Run until `stop` is called from another thread, or Ctrl-C.

        Raises ManifestError, or PeerError where the coordinator will not have this node, is not ours,
        or ships code; IdentityError names a clock that differs.
        """
        if self.identity.name.role is not Role.GENERATOR:
            raise ManifestError(
                f"{self.identity.folder} is {self.identity.name.uri}; a node needs the role generator"
            )
        check_version()
        parse_address(self.address)
        fresh = FreshIdentity(self.identity.folder)
        files.make_folder(self.folder)
        with claimed(
            self.identity.folder / ".node",
            otherwise=f"another node of {self.identity.folder} runs on this machine; end it first",
        ):
            wait_s = _FIRST_WAIT_S
            while not self._stop.is_set():
                if not self._welcome(fresh):
                    self._stop.wait(_AWAY_S)
                    continue
                began = time.monotonic()
                self._judge(self._live())
                if time.monotonic() - began > _SETTLED_S:
                    wait_s = _FIRST_WAIT_S
                self._stop.wait(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def stop(self) -> None:
        """Have `run` end the node and return."""
        self._stop.set()

    def _welcome(self, fresh: FreshIdentity) -> bool:
        """Whether the coordinator is there and takes us. Raises PeerError where it does not."""
        try:
            check_clock(ask_health(self.address, fresh=fresh, party=self.party))
        except ChannelError as error:
            if not self._away:
                self.report(f"waiting: {error}")
            self._away = True
            return False
        self._away = False
        return True

    def _live(self) -> Ending | None:
        """One life of the node's process; what it left."""
        ending = self.folder.resolve() / "ending.json"
        ending.unlink(missing_ok=True)
        orders = self.folder / "orders.json"
        write_orders(
            orders,
            Orders(
                identity=self.identity.folder.resolve(),
                address=self.address,
                party=self.party,
                settings=self.settings.resolve(),
                ending=ending,
                processes=self.processes,
            ),
        )
        home = files.make_folder(self.folder / "flower")
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "splitlearn.coordination.node", str(orders.resolve())],
            env={**os.environ, **flower_settings(home), **self.environment},
            stdin=subprocess.PIPE,
            # Ctrl-C on our terminal is for us; the node and its apps are ended from here.
            start_new_session=True,
        )
        self.report(f"node runs for the coordinator at {self.address}")
        try:
            while process.poll() is None and not self._stop.is_set():
                self._stop.wait(_LOOK_S)
        finally:
            _end(process)
        return read_ending(ending)

    def _judge(self, ending: Ending | None) -> None:
        if self._stop.is_set():
            return
        if ending is not None and ending.final:
            raise PeerError(f"{ending.sentence}; nothing of it was run")
        why = f" ({ending.sentence})" if ending is not None else ""
        self.report(f"node ended{why}; it is started again")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the node to end, wait, and leave nothing of its session behind."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PARTING_S)
    # Its session has the process's number, which stays taken while anything of it lives.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
