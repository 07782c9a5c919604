"""The neighbours of a compute party in a direct chain: how it reaches those that its settings name.

An offer names parties and never addresses: who could choose what we dial could make us dial anything.
"""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from parties.reach import Reach
from splitlearn.errors import IdentityError
from splitlearn.roles import Role

if TYPE_CHECKING:
    from splitlearn.audit import Log
    from splitlearn.channel import Conversation
    from splitlearn.gate import Gate
    from splitlearn.identity import Identity
    from splitlearn.manifest import Compute
    from splitlearn.policy import Ledger, Policy
    from splitlearn.session import BridgeSession
    from splitlearn.wire.messages import Bridge, Neighbour

__all__ = ["Neighbourhood", "Street"]


class Neighbourhood:
    """The ways to all neighbours, as long as the process lives. A context manager."""

    def __init__(self, identity: "Identity", table: "Compute") -> None:
        self._reaches = {
            peer.party: Reach(identity, peer=peer, role=Role.COMPUTE, fresh=False)
            for peer in table.neighbour
        }
        # By party: who came about another bridge than was awaited. The trusted party may have told it first.
        self._early: dict[str, Conversation] = {}
        self._open = ExitStack()

    def __enter__(self) -> "Neighbourhood":
        for reach in self._reaches.values():
            self._open.enter_context(reach)
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._early.values():
            channel.close(reason="the party ends here")
        self._open.close()

    def __bool__(self) -> bool:
        return bool(self._reaches)

    def find(self, neighbour: "Neighbour", *, timeout_s: float) -> "Conversation":
        """A fresh channel to that party for that bridge; see `engine.bridge.Neighbours`."""
        reach = self._reaches.get(neighbour.party)
        if reach is None:
            named = ", ".join(self._reaches)
            raise IdentityError(
                f"the offer names {neighbour.party} as our neighbour, and our settings have a [[neighbour]] "
                f"for {named} only; add one, with dial or listen, if rows are to go there straight from here"
            )
        # Each bridge is a conversation of its own, to which nothing of an older one can come.
        until_s = time.monotonic() + timeout_s
        while True:
            early = self._early.get(neighbour.party)
            if early is not None and early.run == neighbour.bridge and not early.over:
                return self._early.pop(neighbour.party)
            left_s = max(0.1, until_s - time.monotonic())
            channel = reach.meet(about=neighbour.bridge, deadline_s=left_s)
            if channel.run == neighbour.bridge:
                return channel
            self._keep(neighbour.party, channel)

    def _keep(self, party: str, channel: "Conversation") -> None:
        """Until its bridge is asked for, or the party comes about another one."""
        older = self._early.pop(party, None)
        if older is not None:
            older.close(reason="this hop is over; the run has begun anew since")
        self._early[party] = channel


@dataclass
class Street:
    """The hops of one run: `Neighbours` for the engine, with a log for each. Close it."""

    neighbourhood: Neighbourhood
    identity: "Identity"
    rules: "Policy"
    folder: Path
    _channels: "dict[str, Conversation]" = field(default_factory=dict)
    _logs: "dict[str, Log]" = field(default_factory=dict)
    _ledger: "Ledger | None" = None

    def find(self, neighbour: "Neighbour", *, timeout_s: float) -> "Conversation":
        """See `engine.bridge.Neighbours`."""
        found = self.neighbourhood.find(neighbour, timeout_s=timeout_s)
        self._channels[neighbour.party] = found
        return found

    def open_gate(
        self, terms: "Bridge", session: "BridgeSession", *, neighbour: "Neighbour"
    ) -> "Gate":
        """See `engine.bridge.Neighbours`."""
        from splitlearn import __version__
        from splitlearn.gate import Gate

        authorised = self._channels[neighbour.party].authorised
        if authorised is None:
            raise IdentityError(f"{neighbour.party} has not proved who it is")
        return Gate.open(
            self.rules,
            log=self._log(neighbour.party),
            session=session,
            me=self.identity.name,
            peer=authorised.name,
            binding=authorised.fingerprint,
            offer=terms,
            software=f"splitlearn {__version__}",
            ledger=self._spending(terms.run),
        )

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    def _log(self, party: str) -> "Log":
        from splitlearn.audit import Log

        if party not in self._logs:
            self._logs[party] = Log.open(
                self.folder / f"audit-{party}",
                origin=self.identity.name.dns,
                signer=self.identity.log_key,
                clock=time.time,
            )
        return self._logs[party]

    def _spending(self, run: str) -> "Ledger":
        """What a rule lets through to one neighbour counts for the other, too."""
        from splitlearn.policy import Ledger

        if self._ledger is None:
            spent: Counter[str] = Counter()
            for place in sorted(self.folder.glob("audit-*")):
                spent.update(self._log(place.name.removeprefix("audit-")).spent(run))
            self._ledger = Ledger(self.rules, spent=spent)
        return self._ledger
