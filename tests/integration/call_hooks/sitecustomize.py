"""Notes every address outside this machine that a process looks up or connects to.

Python imports a module of this name by itself, in processes that a test starts with this folder on
PYTHONPATH. Nothing else in those processes is a test's.
"""

import ipaddress
import os
import sys
from pathlib import Path


def note_calls(event: str, arguments: tuple) -> None:  # type: ignore[type-arg]
    """An audit hook (PEP 578)."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    try:
        near = host in {None, "localhost", ""} or ipaddress.ip_address(host).is_loopback
    except ValueError:
        near = False
    if not near:
        with Path(os.environ["SPLITLEARN_TEST_CALLS"]).open("a", encoding="utf-8") as file:
            file.write(f"{sys.argv[0]}: {event} {host}\n")


if "SPLITLEARN_TEST_CALLS" in os.environ:
    sys.addaudithook(note_calls)
