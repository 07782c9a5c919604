"""The compute parties of a run as the trusted party's commands hold them: each with a log and a channel.

One log for each, so that a log is one conversation at a time and the party that countersigns its heads
is not told how much was said to others.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parties.reach import Reach
from splitlearn.errors import IdentityError

if TYPE_CHECKING:
    from splitlearn.audit import Log
    from splitlearn.channel import Conversation
    from splitlearn.gate import Gate
    from splitlearn.identity import PartyName
    from splitlearn.manifest import Job
    from splitlearn.policy import Ledger, Policy
    from splitlearn.session import Session
    from splitlearn.wire.messages import Offer

__all__ = ["InHand", "Terms", "logs_of"]

# What a party hears that has to begin anew because another one did: no party learns of another.
_ANEW = "the run begins anew from its newest checkpoint"


def logs_of(job: "Job") -> tuple[Path, ...]:
    """The folders of the run's logs, one for each compute party, in the order of their layers."""
    further = (job.run.folder / f"audit-{table.party}" for table in job.chain)
    return (job.run.folder / "audit", *further)


@dataclass(frozen=True)
class Terms:
    """On which all gates of a run open. ledger: what a rule lets through it lets through to all parties
    together. vocabulary: number of token ids of the model.
    """

    rules: "Policy"
    ledger: "Ledger"
    me: "PartyName"
    vocabulary: int


class InHand:
    """One compute party: found, and found again where a run has to begin anew."""

    def __init__(
        self, reach: Reach, *, log: "Log", terms: Terms, run: str, deadline_s: float
    ) -> None:
        """Looks for the party. Raises ChannelError if it could not be had within `deadline_s`."""
        self._reach, self._log, self._terms = reach, log, terms
        self._run, self._deadline_s = run, deadline_s
        self._found: list[Conversation] = []
        self._gates: list[Gate] = []
        self._find()

    @property
    def channel(self) -> "Conversation":
        """The one under way."""
        return self._found[-1]

    @property
    def warnings(self) -> list[str]:
        """What the gates said of messages that they let pass."""
        return [said for gate in self._gates for said in gate.warnings]

    @property
    def bytes_sent(self) -> int:
        """Over all channels, with handshakes and control."""
        return sum(channel.bytes_sent for channel in self._found)

    @property
    def bytes_received(self) -> int:
        """The same the other way."""
        return sum(channel.bytes_received for channel in self._found)

    def open_gate(self, offer: "Offer", session: "Session") -> "Gate":
        """The door for one conversation with this party."""
        from splitlearn import __version__
        from splitlearn.gate import Gate

        authorised = self.channel.authorised
        if authorised is None:
            raise IdentityError(f"{self.channel.peer} has not proved who it is")
        gate = Gate.open(
            self._terms.rules,
            log=self._log,
            session=session,
            me=self._terms.me,
            peer=authorised.name,
            binding=authorised.fingerprint,
            offer=offer,
            software=f"splitlearn {__version__}",
            vocabulary=self._terms.vocabulary,
            ledger=self._terms.ledger,
        )
        self._gates.append(gate)
        return gate

    def again(self) -> "Conversation":
        """A fresh channel to a party that goes on with what is done again now."""
        self.channel.close(reason=_ANEW)
        self._reach.anew()
        self._find()
        return self.channel

    def close(self, *, reason: str | None = None) -> None:
        """Close the channel; the party hears the reason, if there is one."""
        self.channel.close(reason=reason)

    def _find(self) -> None:
        from parties.console import console

        console.print(f"looking for {self._reach.name.dns}", markup=False)
        self._found.append(self._reach.find(run=self._run, deadline_s=self._deadline_s))
