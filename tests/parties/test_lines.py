"""A compute party in hand: a log of its own, a channel, and another channel where a run begins anew."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from parties.lines import InHand, Terms, logs_of
from parties.reach import Reach, farewell
from splitlearn import policy
from splitlearn.audit import Log, verify
from splitlearn.channel import Listener
from splitlearn.errors import IdentityError, PeerError
from splitlearn.identity import Identity
from splitlearn.manifest import Address, load_job
from splitlearn.manifest.fields import PeerTable
from splitlearn.policy import Ledger
from splitlearn.roles import Role
from splitlearn.session import Session
from tests.door import POLICIES, offer
from tests.federation import make_identity
from tests.jobs import Changes, make_job

WAIT_S = 20.0
FARM: Changes = {"[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 2}}


@pytest.fixture
def clinic(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "clinic", Role.TRUSTED)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    farm = make_identity(tmp_path, "farm", Role.COMPUTE)
    listening = Listener("127.0.0.1:0", identity=farm, expect_roles=frozenset({Role.TRUSTED}))
    yield listening
    listening.close()


@pytest.fixture
def in_hand(tmp_path: Path, clinic: Identity, listener: Listener) -> Iterator[InHand]:
    table = PeerTable.model_construct(
        party="farm", dial=Address("127.0.0.1", listener.port), listen=None
    )
    rules = policy.load(POLICIES / "demo.toml")
    terms = Terms(rules=rules, ledger=Ledger(rules, spent={}), me=clinic.name, vocabulary=60)
    with (
        Log.open(
            tmp_path / "audit", origin=clinic.name.dns, signer=clinic.log_key, clock=time.time
        ) as log,
        Reach(clinic, peer=table, role=Role.COMPUTE, fresh=False) as reach,
    ):
        party = InHand(reach, log=log, terms=terms, run="news", deadline_s=WAIT_S)
        with farewell(party):
            yield party


def test_each_compute_party_has_a_log_of_its_own_and_the_first_keeps_its_name(
    tmp_path: Path,
) -> None:
    job = load_job(make_job(tmp_path, changes=FARM))
    assert logs_of(job) == (tmp_path / "run/audit", tmp_path / "run/audit-farm")
    assert logs_of(load_job(make_job(tmp_path))) == (tmp_path / "run/audit",)


def test_begun_anew_the_party_hears_why_and_gets_another_conversation(
    in_hand: InHand, listener: Listener
) -> None:
    theirs = listener.accept(timeout_s=WAIT_S)
    before = in_hand.channel
    first = in_hand.bytes_sent
    assert first > 0
    fresh = in_hand.again()
    with pytest.raises(PeerError, match="the run begins anew from its newest checkpoint"):
        theirs.receive(timeout_s=WAIT_S)
    theirs.close()
    other = listener.accept(timeout_s=WAIT_S)
    assert other is not theirs
    assert fresh is in_hand.channel is not before
    assert in_hand.bytes_sent > first
    assert in_hand.bytes_received == before.bytes_received + fresh.bytes_received
    in_hand.close()


def test_its_gates_write_into_its_log_and_share_the_runs_budget(
    in_hand: InHand, tmp_path: Path
) -> None:
    terms = msgspec.structs.replace(offer(), run="news")
    gate = in_hand.open_gate(terms, Session(me=Role.TRUSTED, peer=Role.COMPUTE))
    assert gate._ledger is in_hand._terms.ledger
    gate.close(outcome="done")
    assert in_hand.warnings == []
    assert verify(tmp_path / "audit").runs == ("news",)


def test_nobody_who_has_not_proved_who_he_is_gets_a_gate(in_hand: InHand) -> None:
    in_hand.channel.authorised = None
    with pytest.raises(IdentityError, match="has not proved who it is"):
        in_hand.open_gate(offer(), Session(me=Role.TRUSTED, peer=Role.COMPUTE))
