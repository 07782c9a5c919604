"""Two parties as witnesses of each other's logs: heads swapped, proved, countersigned, and receipts.

One settlement, led by the trusted party, after which neither can rewrite its own log alone:

    SETTLE          my head, proof that it extends the one you hold, receipt for what you sent
    SETTLED         the same of the other's, and its countersignature on the head just shown
    COUNTERSIGNED   the countersignature on the head in SETTLED

The peer's heads lie in `peers/<its name>-<which log>/` beside our log, each countersigned by us. Its
key is taken on first sight, over a channel that has proved who it is, and never changes after.
Never sends anything: the engine does.
"""

import hashlib

from splitlearn.audit.checkpoint import (
    Checkpoint,
    cosign,
    format_verifier_key,
    parse_verifier_key,
)
from splitlearn.audit.entries import Direction
from splitlearn.audit.log import VERIFIER_KEY, Log
from splitlearn.audit.merkle import verify_consistency
from splitlearn.audit.receipts import Chain, Claim
from splitlearn.audit.records import PeerCheckpoint, Receipt
from splitlearn.errors import AuditError
from splitlearn.identity import PartyName, files
from splitlearn.wire.messages import Settlement, Terms

__all__ = ["PEERS", "Witness"]

PEERS = "peers"


class Witness:
    """One conversation's receipts, and the heads of the peer's log over all conversations of a run."""

    def __init__(self, log: Log, *, me: PartyName, peer: PartyName, offer: Terms) -> None:
        """Read the newest head of the peer's log that is held. Raises AuditError if it is not right."""
        self._log, self._me, self._peer = log, me, peer
        self._run, self._conversation = offer.run, offer.conversation
        self._chains: dict[Direction, Chain] = {"in": Chain(), "out": Chain()}
        # The salt is drawn with the trusted party's log: it tells one log of a name from the next.
        which = hashlib.sha256(bytes.fromhex(offer.salt)).hexdigest()[:16]
        self._folder = log.folder / PEERS / f"{peer.dns}-{which}"
        self._key, self._held = self._read()
        # Our heads: the newest one shown, the one that the peer said it holds, and the newest with
        # its countersignature.
        self._shown = Checkpoint(origin=log.origin, size=0, root=b"")
        self._base = 0
        self._mine = 0

    @property
    def held(self) -> int:
        """Size of the newest head of the peer's log that we hold; 0 for none."""
        return 0 if self._held is None else self._held.size

    def logged(self, direction: Direction, commit: str) -> None:
        """A message of this conversation was logged."""
        self._chains[direction].add(commit)

    def peer_holds(self, size: int) -> None:
        """The peer says which head of ours it holds: the next one shown is proved to extend it.

        Raises AuditError if our log is shorter than that.
        """
        if size > self._log.size:
            raise AuditError(
                f"{self._peer.uri} holds a signed head of {size} records of log {self._log.folder}, "
                f"which has {self._log.size}: records were dropped from its end, or it is another "
                "log; restore it"
            )
        self._base = size

    def statement(self) -> Settlement:
        """Sign our head and the receipt of all that came in so far."""
        head = self._log.checkpoint()
        self._shown = head
        came = self._chains["in"]
        return Settlement(
            log_key=self._public_key.hex(),
            size=head.size,
            root=head.root.hex(),
            signature=head.signature(self._log.signer).hex(),
            proof=tuple(node.hex() for node in self._log.prove(head.size, since=self._base)),
            received=len(came),
            receipt=self._claim("in", last=len(came)).sign(self._log.signer),
        )

    def take(self, shown: Settlement, *, sent: int) -> str:
        """Check what the peer shows, keep and log it; our countersignature on its head, in hex.

        sent: how many of our messages its receipt has to cover. Raises AuditError, the head kept as
        evidence, if its log is not the one that it was or its receipt is not for what we sent.
        """
        key = format_verifier_key(self._peer.dns, public_key=bytes.fromhex(shown.log_key))
        head = Checkpoint(origin=self._peer.dns, size=shown.size, root=bytes.fromhex(shown.root))
        note = head.note(bytes.fromhex(shown.signature), public_key=bytes.fromhex(shown.log_key))
        Checkpoint.open(note, origin=self._peer.dns, public_key=bytes.fromhex(shown.log_key))
        if shown.received != sent:
            raise AuditError(
                f"{self._peer.uri} gives a receipt for {shown.received} messages where we sent it "
                f"{sent}; its log and ours differ"
            )
        claim = self._claim("out", last=shown.received)
        claim.check(shown.receipt, key=key)
        try:
            self._check_extends(head, shown.proof, key=key)
        except AuditError:
            self._keep(f"{head.size}.refused", note, key=None)
            raise
        countersigned = cosign(note, name=self._log.origin, key=self._log.signer)
        self._keep(f"{head.size}", countersigned, key=key)
        self._key, self._held = key, head
        self._log.append(
            Receipt(
                run=self._run,
                conversation=self._conversation,
                peer=self._peer.uri,
                last=claim.last,
                chain=claim.chain,
                key=key,
                signature=shown.receipt,
            )
        )
        self._log.append(
            PeerCheckpoint(
                run=self._run,
                conversation=self._conversation,
                peer=self._peer.uri,
                key=key,
                size=head.size,
                root=shown.root,
                mine=self._mine,
            )
        )
        return head.signature(self._log.signer).hex()

    def countersigned(self, signature: str, *, by: str) -> None:
        """The peer has countersigned the head that was shown last; `by` is its public key in hex.

        Raises AuditError if the signature is not its own.
        """
        head, public_key = self._shown, bytes.fromhex(by)
        own = head.note(head.signature(self._log.signer), public_key=self._public_key)
        theirs = head.note(bytes.fromhex(signature), public_key=public_key, name=self._peer.dns)
        Checkpoint.open(theirs, origin=head.origin, public_key=public_key, name=self._peer.dns)
        text, _, line = theirs.rpartition("\n\n")
        self._log.keep_head(head.size, f"{own}{line}")
        assert own.startswith(text), "both signed the same text"
        self._mine = self._base = head.size

    @property
    def _public_key(self) -> bytes:
        return self._log.signer.public_key().public_bytes_raw()

    def _claim(self, direction: Direction, *, last: int) -> Claim:
        here, there = self._me.uri, self._peer.uri
        sender, receiver = (here, there) if direction == "out" else (there, here)
        chain = self._chains[direction].at(last)
        return Claim(self._run, self._conversation, sender, receiver, last, chain)

    def _check_extends(self, head: Checkpoint, proof: tuple[str, ...], *, key: str) -> None:
        if self._key not in {None, key}:
            raise AuditError(
                f"{self._peer.uri} signs its log with another key than before in this run; "
                "it has to go on with its old one"
            )
        held = self._held
        if held is not None and not verify_consistency(
            old_size=held.size,
            old_root=held.root,
            new_size=head.size,
            new_root=head.root,
            proof=[bytes.fromhex(node) for node in proof],
        ):
            raise AuditError(
                f"the log of {self._peer.uri} was rewritten: its head of {head.size} records does "
                f"not extend the head of {held.size} that we hold; both lie in {self._folder}"
            )

    def _read(self) -> tuple[str | None, Checkpoint | None]:
        """Key and newest head of the peer, as kept."""
        try:
            if not (self._folder / VERIFIER_KEY).exists():
                return None, None
            key = (self._folder / VERIFIER_KEY).read_text(encoding="utf-8").strip()
            name, public_key = parse_verifier_key(key)
            sizes = [
                int(path.stem) for path in self._folder.glob("*.note") if path.stem.isdecimal()
            ]
            if not sizes:
                return key, None
            note = (self._folder / f"{max(sizes)}.note").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise AuditError(f"{self._folder} cannot be read: {error}") from error
        return key, Checkpoint.open(note, origin=name, public_key=public_key)

    def _keep(self, name: str, note: str, *, key: str | None) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if key is not None and not (self._folder / VERIFIER_KEY).exists():
                files.replace(self._folder / VERIFIER_KEY, f"{key}\n".encode())
            files.replace(self._folder / f"{name}.note", note.encode())
        except OSError as error:
            raise AuditError(
                f"a head of {self._peer.uri}'s log cannot be kept in {self._folder}: "
                f"{error.strerror}; make room there"
            ) from error
