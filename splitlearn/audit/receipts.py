"""Receipts: the receiver's signature that it took in a conversation's messages, with these bytes.

A receipt names no message by content: it signs a chain over the commits of all messages from the
first to the last, so one signature vouches for every one of them and for their order.

    chain(0) = 32 zero bytes        chain(i) = SHA-256(chain(i - 1) || commit of message i)

Never reads a file, never decides when one is due.
"""

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from splitlearn.audit.checkpoint import parse_verifier_key
from splitlearn.audit.merkle import HASH_BYTES
from splitlearn.errors import AuditError

__all__ = ["Chain", "Claim"]


class Chain:
    """The chain of one direction of one conversation, and its value after each message."""

    def __init__(self) -> None:
        self._values = [bytes(HASH_BYTES)]

    def __len__(self) -> int:
        """Messages so far."""
        return len(self._values) - 1

    def add(self, commit: str) -> None:
        """Message number len + 1 was logged with `commit`, in hex."""
        self._values.append(hashlib.sha256(self._values[-1] + bytes.fromhex(commit)).digest())

    def at(self, last: int) -> str:
        """Value after message `last`, in hex. Raises AuditError if there was none such."""
        if not 0 <= last <= len(self):
            raise AuditError(f"a receipt counts {last} messages; {len(self)} are on record")
        return self._values[last].hex()


@dataclass(frozen=True)
class Claim:
    """What a receipt signs: `receiver` took in messages 1 to `last` of `sender`. Both are URIs."""

    run: str
    conversation: str
    sender: str
    receiver: str
    last: int
    chain: str

    @property
    def text(self) -> bytes:
        """One field a line; no field can hold a newline."""
        fields = (self.run, self.conversation, self.sender, self.receiver, str(self.last))
        return "\n".join(("splitlearn receipt 1", *fields, self.chain, "")).encode()

    def sign(self, key: Ed25519PrivateKey) -> str:
        """The receipt's signature, in hex."""
        return key.sign(self.text).hex()

    def check(self, signature: str, *, key: str) -> None:
        """Raises AuditError unless the owner of verifier key `key` signed exactly this."""
        _, public_key = parse_verifier_key(key)
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(
                bytes.fromhex(signature), self.text
            )
        except (InvalidSignature, ValueError):
            raise AuditError(
                f"the receipt of {self.receiver} for {self.last} messages is not signed by its key; "
                "its log and ours differ, or it is forged"
            ) from None
