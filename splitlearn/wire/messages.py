"""The typed metadata of every message kind, as it stands between a frame's header and its payload.

Encoded with msgpack through msgspec as arrays (no field names on the wire), decoded strictly: an
unknown, missing or ill-typed field, or a value outside its bounds, is a WireError. There is no free
text: strings are identifiers of bounded length over a fixed alphabet, everything else is numbers.
"""

from typing import Annotated, Literal, TypeAlias, cast

import msgspec

from splitlearn.roles import Kind
from splitlearn.wire.bridges import Bridge
from splitlearn.wire.pairs import Pairing, Samples, Want
from splitlearn.wire.rounds import Ask, Enlist, Ids, Report, Round
from splitlearn.wire.terms import (
    Batch,
    BottleneckSpec,
    CodecSpec,
    CodecStage,
    Conversation,
    Count,
    CutSpec,
    Detail,
    Digest,
    Hops,
    Length,
    LoraSpec,
    Meta,
    Mode,
    Name,
    Neighbour,
    OptimiserSpec,
    ScheduleSpec,
    Sequence,
    Share,
    SideSpec,
    Signature,
    Small,
    Square,
    TrunkModel,
)

__all__ = [
    "META",
    "Accept",
    "Ask",
    "BottleneckSpec",
    "Bridge",
    "CodecSpec",
    "CodecStage",
    "Countersigned",
    "CutSpec",
    "Detail",
    "Empty",
    "Enlist",
    "Finish",
    "Hops",
    "Ids",
    "LoraSpec",
    "Memory",
    "Meta",
    "Mode",
    "Neighbour",
    "Norm",
    "Offer",
    "OptimiserSpec",
    "Pairing",
    "Report",
    "Resume",
    "Round",
    "Samples",
    "Scale",
    "ScheduleSpec",
    "Settled",
    "Settlement",
    "Shard",
    "SideSpec",
    "Step",
    "StepTensor",
    "Terms",
    "TrunkModel",
    "Want",
    "said",
    "spelt",
]


class Empty(Meta, frozen=True):
    """READY, CLOSED: the kind says it all."""


class Step(Meta, frozen=True):
    """CHECKPOINT, SAVED: `step` optimiser steps are done and stand in the checkpoint.

    best: in a CHECKPOINT, the step whose checkpoint is to be kept beside the newest, or this very one; left
    out on the wire where there is none, so that such a message is spelt as it was before there was any.
    """

    step: Count
    best: Count | None = None


class Memory(Meta, frozen=True):
    """What a decoder attends to beside its own tokens: the last hidden states of the encoder, by token.

    width, lengths: as a StepTensor's, of the other text; there are as many lengths as it has, in
    ACTIVATION only.
    """

    width: Length
    lengths: Annotated[tuple[Length, ...], msgspec.Meta(max_length=4_096)]


class StepTensor(Meta, frozen=True):
    """ACTIVATION, OUTPUT, GRADIENT, INPUT_GRADIENT: where in the run the payload belongs.

    step: optimiser steps done before this one; micro_batch of micro_batches: position in the step.
    lengths: tokens of each example, in ACTIVATION only (masks are rebuilt from it); where a text is gone
    on with, all of its tokens, of which the last `width` are new and the peer keeps what it has of the
    others.
    width: padded length T that the peer rebuilds; packed: rows hold the real tokens only, so
    rows == sum(lengths), otherwise rows == len(lengths) * width.
    reply_to: sequence number of the message this one answers (0 where it answers none).
    memory: of a decoder's trunk, where rows of its memory stand before its own; left out on the wire where
    there are none, so that such a message is spelt as it was before there was any. Its rows are always of
    real tokens; where a text is gone on with, its first message has one, and the peer keeps it.
    """

    step: Count
    micro_batch: Batch
    micro_batches: Batch
    phase: Literal["train", "evaluate", "generate"]
    width: Length
    packed: bool
    lengths: Annotated[tuple[Length, ...], msgspec.Meta(max_length=4_096)]
    reply_to: Sequence
    memory: Memory | None = None


class Offer(Meta, frozen=True):
    """OFFER: the job as far as the compute party has to know it. No text, label, path or vocabulary.

    conversation: 16 random bytes, new each time the parties agree anew; both logs name it.
    job: digest of everything that decides the numbers; two runs with the same digest may resume one
    another. layers and bottlenecks: digests of the trunk's two groups of weights. bases: of those that
    codecs work in, by message kind; of nothing where none does. detail: left out on the wire where the
    job has none, so that such an offer is spelt as it was before there were details.
    """

    run: Name
    conversation: Conversation
    job: Digest
    salt: Digest
    purpose: Literal["train", "evaluate", "generate"]
    mode: Mode
    returns_input_gradient: bool
    model: TrunkModel
    cut: CutSpec
    codecs: CodecSpec
    optimiser: OptimiserSpec
    schedule: ScheduleSpec
    seed: Count
    layers: Digest
    bottlenecks: Digest
    bases: Digest
    held: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
    detail: Detail = Detail()

    @property
    def trains_trunk(self) -> bool:
        """Whether anything in the trunk trains, so that gradients reach it."""
        return self.mode in ("lora", "full")

    def __repr__(self) -> str:
        """Without the salt: a repr ends up in logs."""
        return f"Offer(run={self.run!r}, job={self.job!r}, mode={self.mode!r})"


class Accept(Meta, frozen=True):
    """ACCEPT: the checkpoints the peer holds for this job, and which weights it has to be sent.

    witnessed: size of the newest signed head of our log that it holds, 0 for none.
    """

    held: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
    needs: Annotated[
        tuple[Literal["layers", "bottlenecks", "bases"], ...], msgspec.Meta(max_length=3)
    ]
    witnessed: Sequence


class Shard(Meta, frozen=True):
    """WEIGHTS: shard `index` of `count`; tensor names stand in the payload's own header."""

    index: Small
    count: Small


class Resume(Meta, frozen=True):
    """RESUME: both sides go on from the state after `step` optimiser steps; 0 is the beginning.

    witnessed: as in ACCEPT, the other way.
    """

    step: Count
    witnessed: Sequence


class Finish(Meta, frozen=True):
    """FINISH: the conversation ends; `weights`: after the trunk's trained weights have come back."""

    weights: bool


class Settlement(Meta, frozen=True):
    """SETTLE: the sender's signed log head, proved to extend an older one, and its receipt.

    log_key: Ed25519 public key of the sender's log. size, root, signature: the head. proof: RFC 6962
    consistency proof from the head that the receiver holds. received, receipt: signature for all of
    the receiver's messages up to that number in this conversation.
    """

    log_key: Digest
    size: Sequence
    root: Digest
    signature: Signature
    proof: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=128)]
    received: Sequence
    receipt: Signature


class Settled(Settlement, frozen=True):
    """SETTLED: the same from the other side; countersignature: on the head in SETTLE."""

    countersignature: Signature


class Countersigned(Meta, frozen=True):
    """COUNTERSIGNED: the countersignature on the head in SETTLED."""

    countersignature: Signature


class Norm(Meta, frozen=True):
    """NORM: the squared length of the gradient by all of a compute party's weights that train.

    step: the one that ends. squares: floats whose sum is exactly the sum of the squared norms of the
    weights, each of which is rounded to a float64; no more than a sum of any such has.
    """

    step: Count
    squares: Annotated[tuple[Square, ...], msgspec.Meta(max_length=40)]


class Scale(Meta, frozen=True):
    """SCALE: the number that all parties multiply the gradients of `step` by; 1 where nothing is cut."""

    step: Count
    factor: Share


# What a conversation is about: its first message, or for a hop's ends what they have of it beforehand.
Terms: TypeAlias = Offer | Round | Pairing | Bridge


def said(meta: Meta) -> tuple[str, ...]:
    """Names of the fields that stand on the wire, but for an offer's detail, which is always named."""
    names = meta.__struct_fields__
    return names[:-1] if _silent(meta) else names


def spelt(meta: Meta) -> Meta | tuple[object, ...]:
    """What stands on the wire for `meta`: all its fields, but for one at the end that says nothing.

    Of another detail, fields that came later are left out from the end on where they say nothing.
    """
    if _silent(meta):
        return cast(tuple[object, ...], msgspec.structs.astuple(meta)[:-1])
    if not isinstance(meta, Offer):
        return meta
    fields = cast(tuple[object, ...], msgspec.structs.astuple(meta)[:-1])
    if meta.detail == Detail():
        return fields
    values, silent = (msgspec.structs.astuple(each) for each in (meta.detail, Detail()))
    size = len(values)
    while size > _FIRST_DETAILS and values[size - 1] == silent[size - 1]:
        size -= 1
    return (*fields, values[:size])


def _silent(meta: Meta) -> bool:
    """Whether the last field came later and says nothing."""
    match meta:
        case StepTensor(memory=None) | Step(best=None):
            return True
        case _:
            return False


# So many fields had a detail before any came later.
_FIRST_DETAILS = 4


META: dict[Kind, type[Meta]] = {
    Kind.OFFER: Offer,
    Kind.ACCEPT: Accept,
    Kind.WEIGHTS: Shard,
    Kind.RESUME: Resume,
    Kind.READY: Empty,
    Kind.ACTIVATION: StepTensor,
    Kind.OUTPUT: StepTensor,
    Kind.GRADIENT: StepTensor,
    Kind.INPUT_GRADIENT: StepTensor,
    Kind.CHECKPOINT: Step,
    Kind.SAVED: Step,
    Kind.FINISH: Finish,
    Kind.CLOSED: Empty,
    Kind.SETTLE: Settlement,
    Kind.SETTLED: Settled,
    Kind.COUNTERSIGNED: Countersigned,
    Kind.ROUND: Round,
    Kind.ENLIST: Enlist,
    Kind.ASK: Ask,
    Kind.IDS: Ids,
    Kind.ENOUGH: Empty,
    Kind.REPORT: Report,
    Kind.PAIRING: Pairing,
    Kind.SAMPLES: Samples,
    Kind.WANT: Want,
    Kind.NORM: Norm,
    Kind.SCALE: Scale,
    Kind.BRIDGE: Bridge,
}
