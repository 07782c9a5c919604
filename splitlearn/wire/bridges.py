"""What two compute parties of a direct chain say only to each other; see `session.bridges`."""

from typing import Literal

from splitlearn.wire.terms import Conversation, Digest, Meta, Mode, Name, Small

__all__ = ["Bridge"]


class Bridge(Meta, frozen=True):
    """BRIDGE: the terms of a hop, which each of its ends has from the trusted party's offer to it.

    Both have to have the same. run, job, salt, purpose, mode: as in OFFER. conversation: the bridge of that
    offer. layer: the first behind the hop. activation, input_gradient: codec chains.
    """

    run: Name
    conversation: Conversation
    job: Digest
    salt: Digest
    purpose: Literal["train", "evaluate"]
    mode: Mode
    layer: Small
    activation: Name
    input_gradient: Name

    @property
    def trains(self) -> bool:
        """Whether gradients come back."""
        return self.mode in ("lora", "full")

    def __repr__(self) -> str:
        """Without the salt: a repr ends up in logs."""
        return f"Bridge(run={self.run!r}, conversation={self.conversation!r}, layer={self.layer})"
