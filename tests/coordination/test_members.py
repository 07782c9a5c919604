from dataclasses import dataclass, field, replace

import pytest

from splitlearn.coordination.guard import Member
from splitlearn.coordination.members import Members, Node
from splitlearn.errors import PeerError
from splitlearn.identity import DenyList, PartyName
from splitlearn.roles import Role


@dataclass
class Table:
    """A table of nodes in memory, which refuses what Flower's refuses."""

    rows: dict[int, Node] = field(default_factory=dict)
    next: int = 1

    def nodes(self) -> list[Node]:
        return list(self.rows.values())

    def add(self, *, party: str, key: bytes) -> None:
        assert key not in {row.key for row in self.rows.values()}
        self.rows[self.next] = Node(self.next, party, key, "registered")
        self.next += 1

    def remove(self, number: int) -> None:
        del self.rows[number]

    def rest(self, number: int) -> None:
        assert self.rows[number].status == "online"
        self.set(number, "offline")

    def set(self, number: int, status: str) -> None:
        self.rows[number] = replace(self.rows[number], status=status)


def member(party: str, key: bytes) -> Member:
    name = PartyName(federation="fed.example", party=party, role=Role.GENERATOR)
    return Member(name=name, key=key)


def test_who_comes_first_is_registered_once_under_its_party_and_key() -> None:
    table = Table()
    members = Members(table)
    for _ in range(3):
        members.arrive(member("anna", b"a"))
    members.arrive(member("bert", b"b"))
    assert [(row.party, row.key) for row in table.nodes()] == [("anna", b"a"), ("bert", b"b")]


def test_a_node_that_died_while_online_may_come_back_at_once() -> None:
    table = Table()
    members = Members(table)
    members.arrive(member("anna", b"a"))
    table.set(1, "online")
    assert members.present() == ("anna",)
    members.arrive(member("anna", b"a"))
    assert table.rows[1].status == "offline"
    assert members.present() == ()


def test_a_second_key_of_a_party_waits_until_the_first_is_gone_and_then_replaces_it() -> None:
    table = Table()
    said: list[str] = []
    members = Members(table, report=said.append)
    members.arrive(member("anna", b"a"))
    table.set(1, "online")
    with pytest.raises(PeerError, match="is here already, with another key"):
        members.arrive(member("anna", b"new"))
    assert [row.key for row in table.nodes()] == [b"a"]
    table.set(1, "offline")
    members.arrive(member("anna", b"new"))
    assert [row.key for row in table.nodes()] == [b"new"]
    assert said[-2:] == ["anna has a new key; its old node is unregistered", "registered anna"]


def test_a_denied_party_loses_its_node_and_the_others_keep_theirs() -> None:
    table = Table()
    members = Members(table)
    for party in ("anna", "bert"):
        members.arrive(member(party, party.encode()))
    denied = {member("anna", b"").name.uri, member("bert", b"").name.uri.replace("gen", "x")}
    members.shut_out(DenyList(federation="fed.example", number=1, uris=frozenset(denied)))
    assert [row.party for row in table.nodes()] == ["bert"]
