"""What a decoder party and an encoder party say only to each other; see `session.pairs`."""

from typing import Annotated, Literal

import msgspec

from splitlearn.wire.terms import (
    Batch,
    Conversation,
    Count,
    Digest,
    Length,
    Meta,
    Name,
    OptimiserSpec,
    ScheduleSpec,
    Small,
)

__all__ = ["Pairing", "Samples", "Want"]


class Pairing(Meta, frozen=True):
    """PAIRING: what a decoder party wants of an encoder party. No text, path or vocabulary.

    conversation, job, salt: as in OFFER. naming: the key under which sample ids are hashed, the same in
    all conversations of a run. trains: whether the encoder's adapters do, so that gradients come back.
    width: columns of the rows that the decoder takes; examples, length: a batch has at most so many, of
    at most so many rows each. activation, gradient: codec chains. seed: of the encoder's adapters.
    held: the steps that the decoder holds checkpoints of.
    """

    run: Name
    conversation: Conversation
    job: Digest
    salt: Digest
    naming: Digest
    trains: bool
    width: Small
    examples: Batch
    length: Length
    activation: Name
    gradient: Name
    optimiser: OptimiserSpec
    schedule: ScheduleSpec
    seed: Count
    held: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]

    def __repr__(self) -> str:
        """Without salt and key: a repr ends up in logs."""
        return f"Pairing(run={self.run!r}, job={self.job!r}, trains={self.trains})"


class Samples(Meta, frozen=True):
    """SAMPLES: keyed hashes of sample ids in the payload: so many to train on, so many held out.

    First all that the encoder party has, then those of them that the decoder party has too.
    """

    train: Count
    evaluate: Count


class Want(Meta, frozen=True):
    """WANT: send the rows of these, by their numbers among the samples of their phase.

    step: optimiser steps done.
    """

    step: Count
    phase: Literal["train", "evaluate"]
    samples: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=4_096)]
