"""Neighbours of a direct chain in one process, for tests: each finds the other on a memory channel."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from splitlearn import policy
from splitlearn.audit import Log
from splitlearn.channel import Channel, pair
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.channel.memory import MemoryChannel
from splitlearn.errors import ChannelError
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.roles import Role
from splitlearn.session import BridgeSession
from splitlearn.wire.messages import Bridge, Neighbour
from tests.rig import POLICIES, Party

__all__ = ["Doors", "Street"]


@dataclass
class Street:
    """One for each run: a channel for each bridge, whose ends go to the two that ask for it.

    window: of each channel. around: what a party of that name gets in place of its end.
    """

    window: int = DEFAULT_WINDOW
    around: Callable[[str, Channel], Channel] = lambda _, channel: channel
    made: dict[str, list[tuple[str, MemoryChannel]]] = field(default_factory=dict)
    _taken: set[tuple[str, str]] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def find(self, me: str, neighbour: Neighbour) -> Channel:
        """Our end of the channel for that bridge. ChannelError where it is between others."""
        with self._guard:
            ends = self.made.get(neighbour.bridge)
            if ends is None:
                ours, theirs = pair(window=self.window, names=(me, neighbour.party))
                ends = [(me, ours), (neighbour.party, theirs)]
                self.made[neighbour.bridge] = ends
            for name, channel in ends:
                if name == me and (me, neighbour.bridge) not in self._taken:
                    self._taken.add((me, neighbour.bridge))
                    return self.around(me, channel)
        raise ChannelError(f"{me} has no end of bridge {neighbour.bridge}")

    def kill(self, name: str) -> None:
        """The party's process is gone: nothing is said any more, goodbye included."""
        with self._guard:
            for ends in self.made.values():
                for who, channel in ends:
                    if who == name:
                        channel.cut()
                        channel.mailbox.fail(ChannelError("this process was killed"))


class Doors:
    """One process's neighbours: how it finds them, and a log of its own for each."""

    def __init__(
        self, street: Street, party: Party, *, policy_file: str = "compute-direct.toml"
    ) -> None:
        self._street, self._party = street, party
        self._policy = policy.load(POLICIES / policy_file)
        self.logs: dict[str, Log] = {}

    def find(self, neighbour: Neighbour, *, timeout_s: float) -> Channel:
        """See `engine.bridge.Neighbours`."""
        del timeout_s
        return self._street.find(self._party.me.party, neighbour)

    def open_gate(self, terms: Bridge, session: BridgeSession, *, neighbour: Neighbour) -> Gate:
        """See `engine.bridge.Neighbours`."""
        name = neighbour.party
        if name not in self.logs:
            log = self._party.log
            self.logs[name] = Log.open(
                log.folder.parent / f"audit-{name}",
                origin=log.origin,
                signer=log.signer,
                clock=self._party.clock,
            )
        return Gate.open(
            self._policy,
            log=self.logs[name],
            session=session,
            me=self._party.me,
            peer=PartyName(federation="fed.example", party=name, role=Role.COMPUTE),
            binding="0" * 64,
            offer=terms,
            software="splitlearn-tests",
        )

    def close(self) -> None:
        """Close the logs."""
        for log in self.logs.values():
            log.close()
