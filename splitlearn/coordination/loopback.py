"""Who on this machine opened a loopback connection: the user that owns its other end.

Flower's Control API knows no passwords, and any user of a machine reaches its loopback. Linux says in
/proc/net/tcp whose a socket is; elsewhere nobody can be told apart.
"""

import os
import socket
import sys
from pathlib import Path

__all__ = ["owner_of", "permitted"]

_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _OWNER = 1, 2, 7


def permitted(peer: tuple[str, int], *, here: tuple[str, int]) -> bool:
    """Whether the process behind `peer`, connected to our `here`, is of our user, or of root."""
    return owner_of(peer, here=here) in {os.getuid(), 0}


def owner_of(peer: tuple[str, int], *, here: tuple[str, int], table: Path = _TABLE) -> int | None:
    """User id that owns the socket bound to `peer` and connected to `here`; None where unknown.

    Both are IPv4 addresses of this machine with their ports.
    """
    try:
        wanted = _hexed(peer), _hexed(here)
        with table.open(encoding="ascii") as rows:
            for row in rows:
                fields = row.split()
                if len(fields) > _OWNER and (fields[_LOCAL], fields[_REMOTE]) == wanted:
                    return int(fields[_OWNER])
    except (OSError, ValueError):
        return None
    return None


def _hexed(address: tuple[str, int]) -> str:
    """As the kernel writes it: the four bytes as one number of this machine, and the port."""
    host, port = address
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
