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

from splitlearn.channel import Conversation, Listener, connect
from splitlearn.identity import Authority, Identity, create_federation
from splitlearn.identity.certificates import pem
from splitlearn.identity.party import Keys
from splitlearn.pipeline.probe import ZEROS
from splitlearn.roles import Role

__all__ = ["carrying"]

# Probes at once, and how often.
_TRAIN = 32
_ROUNDS = 5
_WAIT_S = 30.0


def carrying() -> tuple[float, float]:
    """Processor seconds a frame and a byte, at one end, all threads together."""
    with tempfile.TemporaryDirectory() as name, _connected(Path(name)) as ours:
        empty_s, full_s = (
            statistics.median(_probe_s(ours, size) for _ in range(_ROUNDS)) for size in (0, ZEROS)
        )
    # Two ends share the work of a probe and of its answer.
    return empty_s / 4, max(0.0, full_s - empty_s) / ZEROS / 2


def _probe_s(ours: Conversation, size: int) -> float:
    """Both ends' processor seconds for a probe of so many bytes and its answer of none."""
    began_s = time.process_time()
    ours.probe([(size, 0)] * _TRAIN, deadline_s=_WAIT_S)
    return (time.process_time() - began_s) / _TRAIN


@contextmanager
def _connected(folder: Path) -> Iterator[Conversation]:
    authority = create_federation(folder / "federation", name="plan.invalid")
    here = _identity(authority, folder / "here", party="here", role=Role.TRUSTED)
    there = _identity(authority, folder / "there", party="there", role=Role.COMPUTE)
    listener = Listener("127.0.0.1:0", identity=there, expect_roles=frozenset({Role.TRUSTED}))
    try:
        address = f"127.0.0.1:{listener.port}"
        ours = connect(address, identity=here, peer=there.name, run="plan", deadline_s=_WAIT_S)
        theirs = listener.accept(timeout_s=_WAIT_S)
        try:
            yield ours
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
