"""What messages agree on, in parts: bounded types, and the specs that an offer or a pairing is made of."""

from typing import Annotated, Literal

import msgspec

__all__ = [
    "Batch",
    "BottleneckSpec",
    "CodecSpec",
    "CodecStage",
    "Conversation",
    "Count",
    "CutSpec",
    "Detail",
    "Digest",
    "Hops",
    "Length",
    "LoraSpec",
    "Meta",
    "Mode",
    "Name",
    "Neighbour",
    "OptimiserSpec",
    "Party",
    "Real",
    "ScheduleSpec",
    "Sequence",
    "Share",
    "SideSpec",
    "Signature",
    "Small",
    "Square",
    "Staleness",
    "TrunkModel",
    "Vocabulary",
]

# 10 million optimiser steps is far beyond any fine-tuning; it keeps every counter in 32 bits.
Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
# A micro-batch of more than 4,096 examples, or a text of more than 131,072 tokens, is not a job of ours.
Batch = Annotated[int, msgspec.Meta(ge=0, le=4_096)]
Length = Annotated[int, msgspec.Meta(ge=1, le=131_072)]
Small = Annotated[int, msgspec.Meta(ge=0, le=65_536)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Signature = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]
Conversation = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
# As in certificates.
Party = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?\Z")]
# Each step more that segments may be behind holds one more copy of what trains, at both parties.
Staleness = Annotated[int, msgspec.Meta(ge=0, le=4)]
Real = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
# A float32 is below 1e39, so the squares of more weights than there are stay below this.
Square = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
# Four times the largest multilingual vocabulary in use.
Vocabulary = Annotated[int, msgspec.Meta(ge=2, le=2**20)]


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Base of all message metadata."""


class TrunkModel(Meta, frozen=True):
    """What the peer needs to build the trunk's layers: a model type and the numbers of its layers.

    model_type: of a model that has an encoder and a decoder, with the stack of layers that is cut behind it,
    if that is not the encoder's: "bart-decoder", or "bart-both", where layers are counted on.
    """

    model_type: Name
    fields: Annotated[dict[Name, bool | Small | Real | Name], msgspec.Meta(max_length=32)]

    def takes_memory(self, first: int) -> bool:
        """Whether layers from `first` on are a decoder's, which are handed its encoder's output, too.

        >>> TrunkModel("bart-both", {"layers": 6}).takes_memory(7), TrunkModel("bart", {}).takes_memory(7)
        (True, False)
        """
        stack, encoder = self.model_type.rpartition("-")[2], self.fields.get("layers")
        return stack == "decoder" or (
            stack == "both" and isinstance(encoder, int) and first >= encoder
        )


class BottleneckSpec(Meta, frozen=True):
    method: Literal["none", "pca", "sft"]
    rank: Small


class CutSpec(Meta, frozen=True):
    """Trunk is layers [first, last)."""

    first: Small
    last: Small
    lower: BottleneckSpec
    upper: BottleneckSpec


class CodecSpec(Meta, frozen=True):
    """Codec chain of each tensor-bearing kind."""

    activation: Name
    output: Name
    gradient: Name
    input_gradient: Name


class OptimiserSpec(Meta, frozen=True):
    name: Literal["adamw", "sgd"]
    learning_rate: Real
    weight_decay: Real
    beta1: Real
    beta2: Real
    epsilon: Real


class ScheduleSpec(Meta, frozen=True):
    """staleness: how many steps a gradient's weights may be behind, and steps more under way."""

    name: Literal["constant", "linear", "cosine", "inverse_sqrt"]
    warmup_steps: Count
    total_steps: Count
    staleness: Staleness = 0


class LoraSpec(Meta, frozen=True):
    """The adapters of mode "lora", which both parties draw alike and nobody has to send.

    alpha over rank scales what an adapter adds; dropout is before it. targets: dotted names, inside
    a block, of the linear layers that have one. seed: all draws follow from it and the names.
    """

    rank: Annotated[int, msgspec.Meta(ge=1, le=1_024)]
    alpha: Annotated[float, msgspec.Meta(ge=1e-3, le=1e4)]
    dropout: Annotated[float, msgspec.Meta(ge=0, le=0.99)]
    targets: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=32)]
    seed: Count


class SideSpec(Meta, frozen=True):
    """The trunk of mode "side": layers whose output is projected to `rank` columns each and sent back."""

    taps: Annotated[tuple[Small, ...], msgspec.Meta(min_length=1, max_length=64)]
    rank: Annotated[int, msgspec.Meta(ge=1, le=1_024)]


class CodecStage(Meta, frozen=True):
    """From `step` on, counted from 0, these codecs."""

    step: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    codecs: CodecSpec


class Neighbour(Meta, frozen=True):
    """A compute party with which another one speaks itself, by name: where it is stands in that one's file.

    bridge: 16 random bytes, new each time the parties agree anew: the number of their conversation. salt:
    of what both log of it.
    """

    party: Party
    bridge: Conversation
    salt: Digest

    def __repr__(self) -> str:
        """Without the salt: a repr ends up in logs."""
        return f"Neighbour(party={self.party!r}, bridge={self.bridge!r})"


class Hops(Meta, frozen=True):
    """The place of a compute party in a direct chain: whom it has before it and after it, by its layers."""

    before: Neighbour | None
    after: Neighbour | None


class Detail(Meta, frozen=True):
    """What only some jobs have: a table for each, absent in all others.

    repeats: the trusted party keeps what the trunk gave back, and does steps alone whose outputs it has
    all, so that the numbers of steps it names may leave some out. stages: codecs that come after the
    offer's own, in ascending order. clips: whether a step ends with NORM and SCALE. memory_trains: of a
    decoder's trunk, whether gradients by its memory travel, too. hops: in a direct chain the parties next to
    this one. Of the last three what says nothing is left out on the wire from the end on, so that such a
    detail is spelt as it was before there were any.
    """

    lora: LoraSpec | None = None
    side: SideSpec | None = None
    repeats: bool = False
    stages: Annotated[tuple[CodecStage, ...], msgspec.Meta(max_length=8)] = ()
    clips: bool = False
    memory_trains: bool = False
    hops: Hops | None = None


Mode = Literal["features", "side", "lora", "full"]
