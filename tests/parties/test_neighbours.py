"""A compute party's neighbours over the real channel: found under their names, each bridge afresh."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from parties.neighbours import Neighbourhood, Street
from splitlearn import policy
from splitlearn.audit import Payload, read_records
from splitlearn.channel import Released
from splitlearn.errors import ChannelError, IdentityError, PeerError
from splitlearn.identity import Identity
from splitlearn.manifest import Address, Compute
from splitlearn.manifest.fields import PeerTable
from splitlearn.roles import Kind, Role
from splitlearn.session import BridgeSession, Side
from splitlearn.wire import frames
from splitlearn.wire.messages import Bridge, Neighbour, Step
from tests.door import POLICIES
from tests.federation import make_identity
from tests.jobs import a_port

WAIT_S = 20.0
SALT = "e" * 64


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("federation")
    return {
        name: make_identity(folder, name, Role.COMPUTE) for name in ("farm", "host", "stranger")
    }


def table(party: str, *, dial: int = 0, listen: int = 0) -> PeerTable:
    address = Address("127.0.0.1", dial or listen)
    return PeerTable.model_construct(
        party=party, dial=address if dial else None, listen=address if listen else None
    )


def at_home(identity: Identity, *tables: PeerTable) -> Neighbourhood:
    return Neighbourhood(identity, Compute.model_construct(neighbour=tables))


@pytest.fixture
def both(parties: dict[str, Identity]) -> Iterator[tuple[Neighbourhood, Neighbourhood]]:
    """The host's neighbourhood, which waits for the farm, and the farm's."""
    port = a_port()
    with (
        at_home(parties["host"], table("farm", listen=port)) as host,
        at_home(parties["farm"], table("host", dial=port)) as farm,
    ):
        yield host, farm


def bridge(letter: str, party: str) -> Neighbour:
    return Neighbour(party, letter * 32, SALT)


def test_two_neighbours_meet_for_each_bridge_afresh(
    both: tuple[Neighbourhood, Neighbourhood],
) -> None:
    host, farm = both
    with ThreadPoolExecutor(1) as other:
        for letter in "ab":
            far = other.submit(farm.find, bridge(letter, "host"), timeout_s=WAIT_S)
            here = host.find(bridge(letter, "farm"), timeout_s=WAIT_S)
            there = far.result(WAIT_S)
            assert here.run == there.run == letter * 32
            assert here.authorised is not None
            assert here.authorised.name.party == "farm"
            assert not here.over  # the next bridge is begun while this one stands


def test_who_was_told_of_a_bridge_first_waits_until_the_other_hears_of_it(
    both: tuple[Neighbourhood, Neighbourhood],
) -> None:
    """The trusted party tells one after the other: what comes too early must not be lost."""
    host, farm = both
    with ThreadPoolExecutor(1) as other:
        here = other.submit(host.find, bridge("a", "farm"), timeout_s=1.0)
        far = farm.find(bridge("b", "host"), timeout_s=WAIT_S)
        with pytest.raises(ChannelError):
            here.result(WAIT_S)
        found = host.find(bridge("b", "farm"), timeout_s=WAIT_S)
        assert found.run == far.run == "b" * 32
        assert not far.over


def test_of_two_bridges_that_come_too_early_the_newer_one_stands(
    both: tuple[Neighbourhood, Neighbourhood],
) -> None:
    host, farm = both
    with ThreadPoolExecutor(1) as other:
        here = other.submit(host.find, bridge("a", "farm"), timeout_s=1.5)
        for letter in "bc":
            farm.find(bridge(letter, "host"), timeout_s=WAIT_S)
            time.sleep(0.3)
        with pytest.raises(ChannelError):
            here.result(WAIT_S)
        assert host.find(bridge("c", "farm"), timeout_s=WAIT_S).run == "c" * 32


def test_nothing_of_an_older_bridge_comes_in_over_a_newer_one(
    both: tuple[Neighbourhood, Neighbourhood],
) -> None:
    host, farm = both
    with ThreadPoolExecutor(1) as other:
        ends = []
        for letter in "ab":
            far = other.submit(farm.find, bridge(letter, "host"), timeout_s=WAIT_S)
            ends.append((host.find(bridge(letter, "farm"), timeout_s=WAIT_S), far.result(WAIT_S)))
    (old_here, old_there), (here, _) = ends
    raw = frames.encode(Kind.SAVED, seq=1, meta=Step(7))
    with contextlib.suppress(
        ChannelError, PeerError
    ):  # it may know already that its place is taken
        old_there.send(Released(kind=Kind.SAVED, seq=1, raw=raw), deadline_s=1.0)
    with pytest.raises(ChannelError, match="sent nothing"):
        here.receive(timeout_s=0.5)
    with pytest.raises(ChannelError, match="for another conversation"):
        old_here.receive(timeout_s=WAIT_S)


def test_a_party_that_the_settings_do_not_name_is_not_sought(
    both: tuple[Neighbourhood, Neighbourhood],
) -> None:
    host, _ = both
    assert host
    with pytest.raises(IdentityError, match=r"names barn as our neighbour.*for farm only; add one"):
        host.find(bridge("a", "barn"), timeout_s=WAIT_S)


def test_a_good_certificate_of_another_party_is_refused_at_both_ends(
    parties: dict[str, Identity],
) -> None:
    port = a_port()
    with (
        at_home(parties["host"], table("farm", listen=port)) as host,
        at_home(parties["stranger"], table("host", dial=port)) as stranger,
        ThreadPoolExecutor(1) as other,
    ):
        here = other.submit(host.find, bridge("a", "farm"), timeout_s=3.0)
        time.sleep(0.2)  # until it listens
        with pytest.raises(IdentityError, match="farm"):
            stranger.find(bridge("a", "host"), timeout_s=WAIT_S)
        with pytest.raises(ChannelError, match=r"nobody to speak with.*last refused: .*stranger"):
            here.result(WAIT_S)


def test_a_stranger_who_waits_at_the_neighbours_address_is_not_spoken_with(
    parties: dict[str, Identity],
) -> None:
    port = a_port()
    with (
        at_home(parties["stranger"], table("host", listen=port)) as stranger,
        at_home(parties["host"], table("farm", dial=port)) as host,
        ThreadPoolExecutor(1) as other,
    ):
        there = other.submit(stranger.find, bridge("a", "host"), timeout_s=3.0)
        time.sleep(0.2)  # until it listens
        with pytest.raises(IdentityError, match="stranger"):
            host.find(bridge("a", "farm"), timeout_s=WAIT_S)
        with pytest.raises(ChannelError):
            there.result(WAIT_S)


def test_without_a_table_there_is_no_neighbourhood(parties: dict[str, Identity]) -> None:
    with at_home(parties["host"]) as nobody:
        assert not nobody


def test_each_hop_has_a_log_and_all_share_what_a_rule_lets_through(
    both: tuple[Neighbourhood, Neighbourhood], parties: dict[str, Identity], tmp_path: Path
) -> None:
    host, farm = both
    rules = policy.load(POLICIES / "compute-direct.toml")
    street = Street(host, parties["host"], rules, tmp_path)
    neighbour = bridge("c", "farm")
    with ThreadPoolExecutor(1) as other:
        far = other.submit(farm.find, bridge("c", "host"), timeout_s=WAIT_S)
        street.find(neighbour, timeout_s=WAIT_S)
        far.result(WAIT_S)
    terms = Bridge("run", "c" * 32, "0" * 64, SALT, "train", "full", 2, "identity", "identity")
    session = BridgeSession(Role.COMPUTE, Role.COMPUTE, side=Side.BEFORE)
    gate = street.open_gate(terms, session, neighbour=neighbour)
    released = gate.release(Kind.BRIDGE, meta=terms)
    gate.close(outcome="done")
    street.close()
    folder = tmp_path / "audit-farm"
    (payload,) = (r for _, r in read_records(folder) if isinstance(r, Payload))
    assert payload.peer == "spiffe://fed.example/party/farm/role/compute"
    assert payload.rules == ("hop-words",)
    again = Street(host, parties["host"], rules, tmp_path)
    again._channels["barn"] = street._channels["farm"]
    other_gate = again.open_gate(
        terms, BridgeSession(Role.COMPUTE, Role.COMPUTE), neighbour=bridge("d", "barn")
    )
    assert other_gate._ledger._spent == {"hop-words": len(released.raw)}
    again.close()
