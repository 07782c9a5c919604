"""Two network namespaces and a slow wire between them: a link that no process has to relay.

A veth pair with a token bucket (`tc tbf`) at both ends, so both directions have the bandwidth and no
delay of their own. The kernel paces, so the link takes next to no processor time. Linux, root, `ip` and
`tc`; namespaces of a process that is gone are removed by the next one that makes some.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Place", "here", "obstacle", "only_loopback", "slow_wire"]

# Of a bucket: what may pass at once, above the largest packet that veth hands over; and what may
# queue before packets are dropped, as a router's buffer does.
BURST = "70kb"
QUEUE = "100ms"
_NAME = re.compile(r"splitlearn-(\d+)-[ab]")


@dataclass(frozen=True)
class Place:
    """Where a process runs: what to put before its command, its address and its interface."""

    prefix: tuple[str, ...]
    address: str
    interface: str


here = Place((), "127.0.0.1", "lo")


def obstacle() -> str | None:
    """Why no namespaces can be made here; None where they can."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH"
    try:
        with slow_wire(mbit=100.0):
            return None
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` says: {error.stderr.strip()}"


@contextmanager
def slow_wire(*, mbit: float) -> Iterator[tuple[Place, Place]]:
    """Both ends of a wire of so many Mbit/s each way; all of it is gone afterwards.

    CalledProcessError where the system does not permit it.
    """
    _sweep()
    names = [f"splitlearn-{os.getpid()}-{end}" for end in "ab"]
    links = [f"sl{os.getpid()}{end}" for end in "ab"]
    addresses = ["10.201.77.1", "10.201.77.2"]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        first, second = links
        _run(
            *("ip", "link", "add", first, "netns", names[0], "type", "veth"),
            *("peer", "name", second, "netns", names[1]),
        )
        for name, link, address in zip(names, links, addresses, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", link)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", link, "up")
            _run(
                *("tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf"),
                *("rate", f"{mbit:g}mbit", "burst", BURST, "latency", QUEUE),
            )
        a, b = (
            Place(("ip", "netns", "exec", name), address, link)
            for name, link, address in zip(names, links, addresses, strict=True)
        )
        yield a, b
    finally:
        for name in names:
            _remove(name)


@contextmanager
def only_loopback() -> Iterator[Place]:
    """A place from which nothing can be reached but itself; `here` where the system permits none."""
    name = f"splitlearn-{os.getpid()}-a"
    try:
        _sweep()
        _run("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        yield here
        return
    try:
        _run("ip", "-n", name, "link", "set", "lo", "up")
        yield Place(("ip", "netns", "exec", name), "127.0.0.1", "lo")
    finally:
        _remove(name)


def _sweep() -> None:
    """Remove what a killed process left."""
    for line in _run("ip", "netns", "list").splitlines():
        found = _NAME.match(line)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            _remove(found[0])


def _remove(name: str) -> None:
    with suppress(subprocess.CalledProcessError):
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout
