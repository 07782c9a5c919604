"""What vouches for a log from outside: receipts, heads of peers' logs, and the keys that both are under.

Never reads a file: whether a head lies under peers/ and bears its signatures is `verify`'s to say.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from splitlearn.audit.checkpoint import format_verifier_key, parse_verifier_key
from splitlearn.audit.findings import Exit, Findings
from splitlearn.audit.receipts import Chain, Claim
from splitlearn.audit.records import PeerCheckpoint, Receipt, RunOpen
from splitlearn.errors import AuditError, IdentityError
from splitlearn.identity import PartyName

__all__ = ["Talk", "Vouching"]


@dataclass(slots=True)
class Talk:
    """A conversation: what was said in it so far, and what of that the peer gave a receipt for."""

    opened: RunOpen
    record: int
    last: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0})
    messages: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)
    denied: int = 0
    sent: Chain = field(default_factory=Chain)
    # Messages with tensors that went out since the last receipt.
    tensors: list[int] = field(default_factory=list)
    receipted: int = 0


class Vouching:
    """Takes what peers signed and notes where the records before it say otherwise."""

    def __init__(
        self, findings: Findings, *, talks: Mapping[str, Talk], peer_keys: Mapping[str, str]
    ) -> None:
        """talks: by number, as they come to be. peer_keys: those that were told, by the name in them."""
        self.receipts = 0
        self.peer_heads: list[tuple[int, PeerCheckpoint]] = []
        self.keys: dict[str, str] = {}
        self._findings = findings
        self._talks, self._pinned = talks, peer_keys
        self._newest: dict[tuple[str, str], PeerCheckpoint] = {}

    def receipt(self, record: Receipt, *, index: int) -> None:
        """A peer's signature that it took in what was sent to it."""
        self.receipts += 1
        try:
            talk = self._talk_of(record)
            self._check_key(record.peer, record.key)
            if record.last < talk.receipted:
                raise AuditError(
                    f"it counts {record.last} messages where the one before counts {talk.receipted}"
                )
            if record.chain != talk.sent.at(record.last):
                raise AuditError(
                    f"its chain over {record.last} messages is not that of the records: "
                    "one of them is not what the peer took in"
                )
            Claim(
                run=record.run,
                conversation=record.conversation,
                sender=talk.opened.me.id,
                receiver=record.peer,
                last=record.last,
                chain=record.chain,
            ).check(record.signature, key=record.key)
        except AuditError as error:
            self._findings.note(Exit.INTEGRITY, "receipt", str(error), record=index)
            return
        talk.receipted = record.last
        talk.tensors = [message for message in talk.tensors if message > record.last]

    def peer_head(self, record: PeerCheckpoint, *, index: int) -> None:
        """The head of a peer's log, and how much of this one the peer countersigned."""
        try:
            self._talk_of(record)
            self._check_key(record.peer, record.key)
            before = self._newest.get((record.run, record.peer))
            if before is not None and (
                record.size < before.size
                or 0 < record.mine < before.mine
                or (record.size == before.size and record.root != before.root)
            ):
                raise AuditError(
                    f"the head of {record.size} records does not follow the head of {before.size} "
                    "that was recorded before it"
                )
            if record.mine > index:
                raise AuditError(
                    f"it says that the peer countersigned {record.mine} records of this log, which "
                    f"had {index}"
                )
        except AuditError as error:
            self._findings.note(Exit.INTEGRITY, "peer-head", str(error), record=index)
            return
        self._newest[record.run, record.peer] = record
        self.peer_heads.append((index, record))

    def finish(self) -> None:
        """What can be said only at the end."""
        note = self._findings.note
        for talk in self._talks.values():
            if talk.tensors:
                note(
                    Exit.CLEAN,
                    "unreceipted",
                    f"the peer gave a receipt for {talk.receipted} of the {len(talk.sent)} messages "
                    f"sent in this conversation; tensors are in {len(talk.tensors)} of the rest",
                    record=talk.record,
                )
        for uri, key in self.keys.items():
            if parse_verifier_key(key)[0] not in self._pinned:
                note(
                    Exit.CLEAN,
                    "peer-unpinned",
                    f"the key of {uri} was taken from this log; give the one that it told you",
                )

    def _talk_of(self, record: Receipt | PeerCheckpoint) -> Talk:
        talk = self._talks.get(record.conversation)
        if talk is None or (talk.opened.run, talk.opened.peer.id) != (record.run, record.peer):
            raise AuditError(
                f"there is no such conversation of run {record.run} with {record.peer}"
            )
        return talk

    def _check_key(self, uri: str, key: str) -> None:
        """A peer has one key, under its own name, and the one that it told the auditor."""
        if self.keys.get(uri) == key:
            return
        name, public_key = parse_verifier_key(key)
        try:
            party = PartyName.parse(uri)
        except IdentityError as error:
            raise AuditError(str(error)) from None
        if name != party.dns or format_verifier_key(name, public_key=public_key) != key:
            raise AuditError(f"{key[:100]!r} is not a key of {uri}")
        if self._pinned.get(name, key) != key:
            raise AuditError(f"{uri} told you another key than the one that this log has from it")
        if self.keys.setdefault(uri, key) != key:
            raise AuditError(f"{uri} signs with another key than before")
