"""A scripted peer's side of a settlement, without gate, log folder or engine."""

import hmac

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit.checkpoint import Checkpoint
from splitlearn.audit.merkle import Tree
from splitlearn.audit.receipts import Chain, Claim
from splitlearn.identity import PartyName
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Offer, Settled, Settlement


class ScriptedLog:
    """A log that holds one line for each settlement, and receipts for what was heard."""

    def __init__(self, offer: Offer, *, me: PartyName, peer: PartyName) -> None:
        self.offer, self.me, self.peer = offer, me, peer
        self.key = Ed25519PrivateKey.from_private_bytes(b"\x05" * 32)
        self.tree = Tree()
        self.chain = Chain()

    def hear(self, frame: Frame) -> None:
        salt = bytes.fromhex(self.offer.salt)
        self.chain.add(hmac.digest(salt, frame.raw, "sha256").hex())

    def statement(self) -> Settlement:
        base = self.tree.size
        self.tree.append(b"settled")
        head = Checkpoint(origin=self.me.dns, size=self.tree.size, root=self.tree.root())
        last = len(self.chain)
        claim = Claim(
            self.offer.run,
            self.offer.conversation,
            self.peer.uri,
            self.me.uri,
            last,
            self.chain.at(last),
        )
        return Settlement(
            log_key=self.key.public_key().public_bytes_raw().hex(),
            size=head.size,
            root=head.root.hex(),
            signature=head.signature(self.key).hex(),
            proof=tuple(node.hex() for node in (self.tree.consistency(base) if base else ())),
            received=last,
            receipt=claim.sign(self.key),
        )

    def countersign(self, shown: Settlement) -> str:
        head = Checkpoint(origin=self.peer.dns, size=shown.size, root=bytes.fromhex(shown.root))
        return head.signature(self.key).hex()

    def answer(self, shown: Settlement) -> Settled:
        s = self.statement()
        return Settled(
            log_key=s.log_key,
            size=s.size,
            root=s.root,
            signature=s.signature,
            proof=s.proof,
            received=s.received,
            receipt=s.receipt,
            countersignature=self.countersign(shown),
        )
