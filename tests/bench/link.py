"""How exact the emulated link is: bandwidth and round trip, through a relay in a process of its own.

A burst of some seconds' worth of bytes each way, timed from its first to its last byte at the far end;
round trips of a small message; both against what was asked for, for several links. Writes
out/bench/link.json, keys `worst_bandwidth_error` and `worst_round_trip_error_ms`. Run as
`python -m tests.bench.link`; on an idle machine.
"""

import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "link.json"
TARGETS = {"worst_bandwidth_error": 0.03, "worst_round_trip_error_ms": 2.0}
LINKS = [(mbit, rtt_ms) for mbit in (10, 50, 100, 200) for rtt_ms in (0, 20, 80)]
BURST_S = 1.0
ROUND_TRIPS = 21
# Left out at the beginning of a burst: what fills buffers.
WARM_SHARE = 0.2


@contextmanager
def emulated(port: int, *, mbit: float, rtt_ms: float) -> Iterator[socket.socket]:
    """A connection over the emulated link to `port`."""
    command = [
        *(sys.executable, "-m", "parties.cli", "link", "emulate"),
        *("--listen", "127.0.0.1:0", "--to", f"127.0.0.1:{port}"),
        *("--mbit", str(mbit), "--rtt-ms", str(rtt_ms)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as link:
        assert link.stdout is not None
        try:
            found = int(link.stdout.readline().split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", found)) as near:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield near
        finally:
            link.terminate()


def pace(receiver: socket.socket, size: int) -> float:
    """Bits a second at which `size` bytes come, without the first of them."""
    warm, got, began_s, at_start = int(size * WARM_SHARE), 0, 0.0, 0
    while got < size:
        got += len(receiver.recv(2**16))
        if not began_s and got >= warm:
            began_s, at_start = time.perf_counter(), got
    return 8 * (got - at_start) / (time.perf_counter() - began_s)


def measure(mbit: float, rtt_ms: float) -> dict[str, float]:
    """Figures of one link."""
    size = int(mbit * 1e6 * BURST_S / 8)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        emulated(server.getsockname()[1], mbit=mbit, rtt_ms=rtt_ms) as near,
        server.accept()[0] as far,
    ):
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(ROUND_TRIPS):
            began_s = time.perf_counter()
            near.sendall(b"x")
            far.sendall(far.recv(1))
            near.recv(1)
            trips.append(time.perf_counter() - began_s)
        found = {"mbit": mbit, "rtt_ms": rtt_ms}
        found["measured_rtt_ms"] = 1e3 * statistics.median(trips)
        for name, sender, receiver in (("up", near, far), ("down", far, near)):
            thread = threading.Thread(target=sender.sendall, args=(bytes(size),))
            thread.start()
            found[f"{name}_mbit"] = pace(receiver, size) / 1e6
            thread.join()
    return found


def main() -> None:
    rows = []
    for mbit, rtt_ms in LINKS:
        rows.append(measure(mbit, rtt_ms))
        print(json.dumps(rows[-1]), flush=True)
    result = {
        "worst_bandwidth_error": max(
            abs(row[name] / row["mbit"] - 1) for row in rows for name in ("up_mbit", "down_mbit")
        ),
        "worst_round_trip_error_ms": max(
            abs(row["measured_rtt_ms"] - row["rtt_ms"]) for row in rows
        ),
        "targets": TARGETS,
        "links": rows,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: result[key] for key in TARGETS}, indent=2))


if __name__ == "__main__":
    main()
