"""Flower's own table of nodes keeps what `members` is built on."""

import pytest

from splitlearn.coordination.members import Members
from splitlearn.errors import PeerError
from tests.coordination.conftest import Place
from tests.coordination.test_members import member


@pytest.fixture
def members(place: Place) -> Members:
    assert place.link.members is not None
    return place.link.members


def test_the_table_registers_rests_and_removes(members: Members) -> None:
    table = members._table
    key = b"-----BEGIN PUBLIC KEY----- state"
    table.add(party="state", key=key)
    (node,) = [node for node in table.nodes() if node.party == "state"]
    assert (node.key, node.status) == (key, "registered")
    # Called offline where it never was online: nothing happens.
    table.rest(node.number)
    (node,) = [node for node in table.nodes() if node.party == "state"]
    assert node.status == "registered"
    table.remove(node.number)
    assert "state" not in {node.party for node in table.nodes()}


def test_a_key_that_was_unregistered_stays_out(members: Members) -> None:
    members.arrive(member("again", b"again"))
    (node,) = [node for node in members._table.nodes() if node.party == "again"]
    members._table.remove(node.number)
    with pytest.raises(PeerError, match="again comes with a key that was unregistered"):
        members.arrive(member("again", b"again"))
    members.arrive(member("again", b"another"))
    (node,) = [node for node in members._table.nodes() if node.party == "again"]
    members._table.remove(node.number)
