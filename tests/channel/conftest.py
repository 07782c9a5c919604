"""Two parties of one federation, and messages for them to exchange."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splitlearn.channel import Conversation, Listener, Released, connect
from splitlearn.identity import Identity
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames
from splitlearn.wire.messages import StepTensor
from tests.federation import make_identity

DEADLINE_S = 20.0


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="session")
def trusted(folder: Path) -> Identity:
    return make_identity(folder, "alpha", Role.TRUSTED)


@pytest.fixture(scope="session")
def compute(folder: Path) -> Identity:
    return make_identity(folder, "beta", Role.COMPUTE)


@pytest.fixture
def message() -> Callable[..., Released]:
    """A frame with a sequence number and a payload of any size."""

    def make(seq: int, *, size: int = 0, kind: Kind = Kind.ACTIVATION) -> Released:
        meta = StepTensor(
            step=0,
            micro_batch=0,
            micro_batches=1,
            phase="train",
            width=4,
            packed=True,
            lengths=(4,),
            reply_to=0,
        )
        # Every byte depends on its place and on the frame, so that a lost or doubled chunk shows.
        payload = bytes((seq + place // 7) % 256 for place in range(min(size, 4096)))
        payload = (payload * (size // 4096 + 1))[:size]
        return Released(
            kind=kind,
            seq=seq,
            raw=frames.encode(kind, seq=seq, meta=meta, payload=payload),
        )

    return make


@pytest.fixture
def listener(compute: Identity) -> Iterator[Listener]:
    """The compute party listens."""
    listening = Listener("127.0.0.1:0", identity=compute, expect_roles=frozenset({Role.TRUSTED}))
    yield listening
    listening.close()


@pytest.fixture
def ends(
    listener: Listener, trusted: Identity, compute: Identity
) -> Iterator[tuple[Conversation, Conversation]]:
    """A connected pair: the trusted party's end, which dialled, and the compute party's."""
    dialled = connect(
        f"127.0.0.1:{listener.port}",
        identity=trusted,
        peer=compute.name,
        run="demo",
        deadline_s=DEADLINE_S,
    )
    accepted = listener.accept(timeout_s=DEADLINE_S)
    yield dialled, accepted
    dialled.close(reason="the test is over")
    accepted.close(reason="the test is over")


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    """Whatever a test opened and closed, its threads are gone with it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5.0
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()
