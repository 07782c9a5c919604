"""What a frame costs on a channel of this machine, whatever is in it: gRPC, TLS and waking up.

Between two parties of a federation that lives as long as the measurement, in this process over loopback.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from splitlearn.channel import Channel, Listener, Released, connect
from splitlearn.identity import Authority, Identity, create_federation
from splitlearn.identity.certificates import pem
from splitlearn.identity.party import Keys
from splitlearn.pipeline.speeds import Line
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames
from splitlearn.wire.messages import StepTensor

__all__ = ["carrying"]

_SIZES = (4 * 2**10, 512 * 2**10)
_TRIPS = 12
_WAIT_S = 30.0


def carrying() -> tuple[float, float]:
    """Processor seconds a frame and a byte, at one end, all threads together."""
    points: dict[float, float] = {}
    with tempfile.TemporaryDirectory() as name, _connected(Path(name)) as ends:
        for size in _SIZES:
            frame = _frame(size)
            points[float(size)] = statistics.median(_trip_s(ends, frame) for _ in range(_TRIPS))
    line = Line.through(points)
    return line.fixed_s, line.each_s


def _trip_s(ends: tuple[Channel, Channel], frame: Released) -> float:
    """A frame there and back: each end sends one and takes one, so a quarter of it is one frame's."""
    began_s = time.process_time()
    for source, dest in (ends, ends[::-1]):
        source.send(frame, deadline_s=_WAIT_S)
        dest.receive(timeout_s=_WAIT_S)
    return (time.process_time() - began_s) / 4


def _frame(size: int) -> Released:
    meta = StepTensor(0, 0, 1, "train", 1, packed=True, lengths=(1,), reply_to=0)
    raw = frames.encode(Kind.ACTIVATION, seq=1, meta=meta, payload=bytes(size))
    return Released(kind=Kind.ACTIVATION, seq=1, raw=raw)


@contextmanager
def _connected(folder: Path) -> Iterator[tuple[Channel, Channel]]:
    authority = create_federation(folder / "federation", name="plan.invalid")
    here = _identity(authority, folder / "here", party="here", role=Role.TRUSTED)
    there = _identity(authority, folder / "there", party="there", role=Role.COMPUTE)
    listener = Listener("127.0.0.1:0", identity=there, expect_roles=frozenset({Role.TRUSTED}))
    try:
        address = f"127.0.0.1:{listener.port}"
        ours = connect(address, identity=here, peer=there.name, run="plan", deadline_s=_WAIT_S)
        theirs = listener.accept(timeout_s=_WAIT_S)
        try:
            yield ours, theirs
        finally:
            ours.close()
            theirs.close()
    finally:
        listener.close()


def _identity(authority: Authority, folder: Path, *, party: str, role: Role) -> Identity:
    keys = Keys.obtain(folder)
    leaf = authority.issue(
        authority.name(party=party, role=role),
        public_key=keys.certificate.public_key(),
        log_public=keys.log.public_key().public_bytes_raw(),
        now=datetime.now(UTC),
    )
    return Identity.establish(
        folder,
        certificate=pem(leaf),
        ca=pem(authority.ca),
        denied=authority.denied_json,
        registrar=None,
    )
