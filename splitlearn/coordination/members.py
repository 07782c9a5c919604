"""Which generators the SuperLink knows as nodes: the member list, in Flower's own database.

A generator is a member from when it first comes with a certificate of the federation, under the key in
it, until somebody denies it. One party has one node.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from splitlearn.coordination.guard import Member
from splitlearn.errors import PeerError
from splitlearn.identity import DenyList, PartyName
from splitlearn.roles import Role

__all__ = ["Members", "Node", "NodeTable"]

ONLINE = "online"


@dataclass(frozen=True)
class Node:
    """A row of Flower's table of nodes. status: registered, online or offline."""

    number: int
    party: str
    key: bytes
    status: str


class NodeTable(Protocol):
    """What we ask of Flower's database; see `superlink`."""

    def nodes(self) -> Iterable[Node]:
        """Every node that is not unregistered."""

    def add(self, *, party: str, key: bytes) -> None:
        """Register a node. Raises PeerError where its key was unregistered before."""

    def remove(self, number: int) -> None:
        """Unregister a node: its key is worth nothing from now on."""

    def rest(self, number: int) -> None:
        """Call a node offline, so that it may be activated anew."""


class Members:
    """Keeps the table right as generators come and are denied. Safe to use from several threads."""

    def __init__(
        self, table: NodeTable, *, report: Callable[[str], None] = lambda _line: None
    ) -> None:
        self._table = table
        self._report = report
        self._lock = threading.Lock()

    def arrive(self, member: Member) -> None:
        """Have `member` in the table, ready to be activated. Raises PeerError where it may not.

        A node that died did not say so, and would be called online for another minute; its key comes
        back, so that is over. Another key of the same party waits until the first one's node is gone.
        """
        party = member.name.party
        with self._lock:
            mine = [node for node in self._table.nodes() if node.party == party]
            for node in mine:
                if node.key != member.key and node.status == ONLINE:
                    raise PeerError(
                        f"{member.name.uri} is here already, with another key: end its other node, "
                        "or wait for a minute after it has died"
                    )
            known = False
            for node in mine:
                if node.key != member.key:
                    self._table.remove(node.number)
                    self._report(f"{party} has a new key; its old node is unregistered")
                    continue
                known = True
                if node.status == ONLINE:
                    self._table.rest(node.number)
            if not known:
                self._table.add(party=party, key=member.key)
                self._report(f"registered {party}")

    def shut_out(self, denied: DenyList) -> None:
        """Unregister every node whose party is denied as a generator."""
        with self._lock:
            for node in self._table.nodes():
                name = PartyName(
                    federation=denied.federation, party=node.party, role=Role.GENERATOR
                )
                if name.uri in denied.uris:
                    self._table.remove(node.number)
                    self._report(f"unregistered {node.party}: it is denied")

    def present(self) -> tuple[str, ...]:
        """Parties whose nodes are online, in order of their names."""
        return tuple(sorted(node.party for node in self._table.nodes() if node.status == ONLINE))
