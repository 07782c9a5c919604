"""Getting hold of a peer over the real channel, and taking leave of it."""

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from parties import reach
from parties.reach import Reach, farewell
from splitlearn.channel import Conversation, Listener, PeerRestarted, connect
from splitlearn.errors import (
    AuditError,
    ChannelError,
    IdentityError,
    ManifestError,
    PeerError,
    RefusedError,
    WireError,
)
from splitlearn.identity import Identity, Registrar
from splitlearn.manifest import Address
from splitlearn.manifest.fields import PeerTable
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity

WAIT_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def clinic(folder: Path) -> Identity:
    return make_identity(folder, "clinic", Role.TRUSTED)


@pytest.fixture(scope="module")
def gpuhost(folder: Path) -> Identity:
    return make_identity(folder, "gpuhost", Role.COMPUTE)


@pytest.fixture
def listener(gpuhost: Identity) -> Iterator[Listener]:
    listening = Listener("127.0.0.1:0", identity=gpuhost, expect_roles=frozenset({Role.TRUSTED}))
    yield listening
    listening.close()


@pytest.fixture
def ends(
    listener: Listener, clinic: Identity, gpuhost: Identity
) -> Iterator[tuple[Conversation, Conversation]]:
    address = f"127.0.0.1:{listener.port}"
    ours = connect(address, identity=clinic, peer=gpuhost.name, run="news", deadline_s=WAIT_S)
    theirs = listener.accept(timeout_s=WAIT_S)
    yield ours, theirs
    ours.close(reason="the test is over")
    theirs.close(reason="the test is over")


def dialling(port: int, *, party: str = "gpuhost") -> PeerTable:
    return PeerTable.model_construct(party=party, dial=Address("127.0.0.1", port), listen=None)


def listening(party: str = "gpuhost") -> PeerTable:
    return PeerTable.model_construct(party=party, dial=None, listen=Address("127.0.0.1", 0))


def port_said(capsys: pytest.CaptureFixture[str]) -> int:
    said = ""
    while not said.endswith("\n"):
        said += capsys.readouterr().err
    return int(said.split("listening on port ")[1])


def test_a_peer_that_listens_is_dialled(
    clinic: Identity, gpuhost: Identity, listener: Listener
) -> None:
    with Reach(clinic, peer=dialling(listener.port), role=Role.COMPUTE) as found:
        assert found.name == gpuhost.name
        channel = found.find(run="news", deadline_s=WAIT_S)
        assert channel.authorised is not None
        assert channel.authorised.name == gpuhost.name
        channel.close()


def test_a_peer_that_dials_is_waited_for_on_one_port_again_and_again(
    clinic: Identity, gpuhost: Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        ThreadPoolExecutor(1) as other,
        Reach(clinic, peer=listening(), role=Role.COMPUTE) as found,
    ):
        with pytest.raises(ChannelError, match=r"nobody to speak with dialled port"):
            found.find(run="news", deadline_s=0.01)
        address = f"127.0.0.1:{port_said(capsys)}"
        for _ in range(2):
            dialled = other.submit(
                connect, address, identity=gpuhost, peer=clinic.name, deadline_s=WAIT_S
            )
            channel = found.find(run="news", deadline_s=WAIT_S)
            assert channel.run == "news"
            dialled.result(WAIT_S).close()
            channel.close()
        assert "listening" not in capsys.readouterr().err
    with pytest.raises(ChannelError):
        connect(address, identity=gpuhost, peer=clinic.name, deadline_s=0.2)


def test_whom_a_listener_turns_away_is_told_to_whoever_runs_it(
    folder: Path, clinic: Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = make_identity(folder, "stranger", Role.COMPUTE)
    with (
        ThreadPoolExecutor(1) as other,
        Reach(clinic, peer=listening(), role=Role.COMPUTE) as found,
    ):
        with pytest.raises(ChannelError):
            found.find(run="", deadline_s=0.01)
        address = f"127.0.0.1:{port_said(capsys)}"
        dialled = other.submit(
            connect, address, identity=stranger, peer=clinic.name, deadline_s=WAIT_S
        )
        with pytest.raises(IdentityError, match="the wrong name"):
            dialled.result(WAIT_S)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("refused ")
        assert "party/stranger/role/compute, the wrong name" in line


def test_a_peer_that_is_not_there_yet_is_tried_again(
    clinic: Identity, gpuhost: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "_TRY_S", 0.05)
    tries = []
    found = Reach(clinic, peer=dialling(9), role=Role.COMPUTE)
    once = found.find

    def count(*, run: str, deadline_s: float) -> Conversation:
        tries.append(run)
        if len(tries) == 3:
            raise PeerError("enough")
        return once(run=run, deadline_s=deadline_s)

    monkeypatch.setattr(found, "find", count)
    with found, pytest.raises(PeerError, match="enough"):
        found.find_patiently(run="news")
    assert tries == ["news"] * 3


def test_a_peer_that_refuses_is_not_tried_again(
    folder: Path, clinic: Identity, listener: Listener
) -> None:
    with (
        Reach(clinic, peer=dialling(listener.port, party="bank"), role=Role.COMPUTE) as found,
        pytest.raises(IdentityError, match=r"the wrong name"),
    ):
        found.find_patiently(run="")


def test_a_table_that_names_no_way_is_a_manifest_error(clinic: Identity) -> None:
    nowhere = PeerTable.model_construct(party="gpuhost", dial=None, listen=None)
    with (
        Reach(clinic, peer=nowhere, role=Role.COMPUTE) as found,
        pytest.raises(ManifestError, match=r"neither dial nor listen"),
    ):
        found.find(run="", deadline_s=1.0)


def test_a_certificate_that_is_due_is_renewed(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    dates = {"not_before": now - timedelta(hours=20), "not_after": now + timedelta(hours=4)}
    told: list[str] = []
    with Registrar(make_authority(tmp_path).folder, port=0, report=told.append) as registrar:
        old = make_identity(tmp_path, "clinic", Role.TRUSTED, registrar=registrar.address, **dates)
        table = dialling(1)
        with Reach(old, peer=table, role=Role.COMPUTE) as found:
            for _ in range(2):
                with pytest.raises(ChannelError):
                    found.find(run="", deadline_s=0.1)
    assert old.reload().certificate.not_valid_after_utc > old.certificate.not_valid_after_utc
    # Whoever looked first, in the foreground or beside it; at most both at the same moment.
    certified = [line for line in told if line.startswith(f"certified {old.name.uri}")]
    assert len(certified) in {1, 2}


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (WireError("a frame is of protocol 2"), "a frame is of protocol 2"),
        (AuditError("/home/anna/patients is full"), "the run was stopped here: AuditError"),
        (RefusedError("text of a patient", rule="x"), "the run was stopped here: RefusedError"),
        (KeyboardInterrupt(), "the run was interrupted here; it goes on when it is started again"),
        (ZeroDivisionError("secret"), "the run failed here"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_bad_end_is_told_to_the_peer_and_nothing_of_ours(
    ends: tuple[Conversation, Conversation], error: BaseException, heard: str
) -> None:
    ours, theirs = ends
    with pytest.raises(type(error)), farewell(ours):
        raise error
    with pytest.raises(PeerError) as told:
        theirs.receive(timeout_s=WAIT_S)
    assert str(told.value).endswith(heard)


def test_a_good_end_is_no_error_for_the_peer(ends: tuple[Conversation, Conversation]) -> None:
    ours, theirs = ends
    with farewell(ours):
        pass
    with pytest.raises(ChannelError, match=r"closed"):
        ours.receive(timeout_s=WAIT_S)
    theirs.close()


def test_nothing_runs_on_when_a_reach_is_left(clinic: Identity) -> None:
    before = set(threading.enumerate())
    with Reach(clinic, peer=listening(), role=Role.COMPUTE) as found:
        with pytest.raises(ChannelError):
            found.find(run="", deadline_s=0.01)
        assert set(threading.enumerate()) - before
    patience = threading.Event()
    deadline = time.monotonic() + WAIT_S
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        gc.collect()  # gRPC's own thread ends with the last of its objects
        patience.wait(0.01)
    assert set(threading.enumerate()) - before == set()


def test_a_reach_begun_anew_comes_to_a_listener_as_a_new_process(
    clinic: Identity, listener: Listener
) -> None:
    with Reach(clinic, peer=dialling(listener.port), role=Role.COMPUTE, fresh=False) as found:
        ours = found.find(run="news", deadline_s=WAIT_S)
        theirs = listener.accept(timeout_s=WAIT_S)
        found.anew()
        fresh = found.find(run="news", deadline_s=WAIT_S)
        with pytest.raises(PeerRestarted):
            theirs.receive(timeout_s=WAIT_S)
        for channel in (ours, fresh, theirs):
            channel.close(reason="the test is over")
