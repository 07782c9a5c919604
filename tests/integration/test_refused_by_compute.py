"""A compute party at work, and trusted parties that send it what they may not.

It says why in one line, tells the sender, and waits for the next: nobody's mistake ends it.
"""

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from parties import cli, compute
from splitlearn.channel import Conversation, Released, connect
from splitlearn.errors import PeerError
from splitlearn.identity import Identity
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames
from splitlearn.wire.messages import Offer, StepTensor, TrunkModel
from tests.door import offer
from tests.federation import make_identity
from tests.integration.clinic import WAIT_S, Clinic, free_port, splitlearn, write_model

POLICIES = Path(cli.__file__).parent / "policies"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@dataclass
class Host:
    """A compute party that ends after one good run."""

    identity: Identity
    address: str
    ended: Future[None]


@pytest.fixture
def gpuhost(tmp_path: Path) -> Host:
    identity = make_identity(tmp_path, "gpuhost", Role.COMPUTE)
    address = f"127.0.0.1:{free_port()}"
    settings = tmp_path / "compute.toml"
    settings.write_text(
        '[run]\nfolder = "runs"\ndeadline_s = 5\n[identity]\nfolder = "gpuhost-compute"\n'
        f'[peer]\nparty = "clinic"\nlisten = "{address}"\n'
        f'[policy]\nfile = "{POLICIES / "compute.toml"}"\n'
    )
    ended: Future[None] = Future()

    def serve() -> None:
        ended.set_result(compute.compute(settings, runs=1, threads=0))

    # Not waited for: where a test fails it goes on for ever.
    threading.Thread(target=serve, daemon=True).start()
    return Host(identity, address, ended)


def over_the_limit() -> bytes:
    raw = bytearray(frames.encode(Kind.OFFER, seq=1, meta=offer()))
    raw[20:28] = (2 * 10**9).to_bytes(8, "big")
    return bytes(raw)


def of_another_protocol() -> bytes:
    raw = bytearray(frames.encode(Kind.OFFER, seq=1, meta=offer()))
    raw[4] = 2
    return bytes(raw)


def not_an_offer() -> bytes:
    meta = StepTensor(0, 0, 1, "train", 4, True, (4,), 0)
    return frames.encode(Kind.ACTIVATION, seq=1, meta=meta)


def the_second_first() -> bytes:
    return frames.encode(Kind.OFFER, seq=2, meta=offer())


def a_model_that_is_none() -> bytes:
    fields: dict[str, bool | int | float | str] = {"hidden_size": 3}
    meta: Offer = msgspec.structs.replace(offer(), model=TrunkModel("bert", fields))
    return frames.encode(Kind.OFFER, seq=1, meta=meta)


BAD = {
    over_the_limit: "this offer frame announces",
    of_another_protocol: "a frame is of protocol 2; expected 1",
    not_an_offer: "the conversation began with activation; expected offer",
    the_second_first: "message 2 (offer) runs ahead of the conversation",
    a_model_that_is_none: "hidden_size",
}


def dial(host: Host, clinic: Identity, *, run: str) -> Conversation:
    return connect(
        host.address, identity=clinic, peer=host.identity.name, run=run, deadline_s=WAIT_S
    )


def test_what_a_trusted_party_may_not_send_is_told_to_both_and_ends_nothing(
    tmp_path: Path, model: Path, gpuhost: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic = make_identity(tmp_path, "clinic", Role.TRUSTED)
    said = ""
    for number, (bad, why) in enumerate(BAD.items()):
        channel = dial(gpuhost, clinic, run=f"run-{number}")
        sent = Released(kind=Kind.OFFER, seq=1, raw=bad())
        channel.send(sent, deadline_s=WAIT_S)
        with pytest.raises(PeerError) as told:
            channel.receive(timeout_s=WAIT_S)
        channel.close(reason="the test is over")
        assert why in str(told.value), bad.__name__
        # A conversation that nobody has taken up yet gives way to the next of the same party.
        deadline = time.monotonic() + WAIT_S
        while said.count("run not finished: ") <= number and time.monotonic() < deadline:
            said += capsys.readouterr().err
            time.sleep(0.02)
    outcome = splitlearn("trusted", "train", Clinic(tmp_path, model).job(gpuhost.address))
    gpuhost.ended.result(WAIT_S)
    assert outcome.code == 0, outcome.err
    said += capsys.readouterr().err + outcome.err
    reasons = [line for line in said.splitlines() if line.startswith("run not finished: ")]
    assert len(reasons) == len(BAD)
    for line, why in zip(reasons, BAD.values(), strict=True):
        assert why in line
    assert "is finished; log: " in said
