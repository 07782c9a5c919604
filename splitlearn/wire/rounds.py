"""What a discriminator and its generators say to each other in a round; see `session.streams`."""

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
    Real,
    Sequence,
    Share,
    Vocabulary,
)

__all__ = ["Ask", "Enlist", "Ids", "Report", "Round"]


class Round(Meta, frozen=True):
    """ROUND: what a generator's batches have to look like, from the discriminator that takes them.

    conversation: 16 random bytes, new each time; salt: of the log that the discriminator keeps about this
    generator; job: digest of everything that decides the discriminator's numbers. number: of the round.
    vocabulary, vocabulary_digest: how many ids there are and which. examples, width: a batch has at
    most so many, of at most so many tokens each. masked: share of the tokens that are masked. seed: of
    the run. following: the lowest batch index that is taken, for no batch is trained on twice.
    """

    run: Name
    conversation: Conversation
    salt: Digest
    job: Digest
    number: Count
    vocabulary: Vocabulary
    vocabulary_digest: Digest
    examples: Batch
    width: Length
    masked: Share
    seed: Count
    following: Sequence

    def __repr__(self) -> str:
        """Without the salt: a repr ends up in logs."""
        return f"Round(run={self.run!r}, job={self.job!r}, number={self.number})"


class Enlist(Meta, frozen=True):
    """ENLIST: the generator's language and vocabulary, the size of its text in tokens, its next batch.

    witnessed: size of the newest signed head of our log that it holds, 0 for none.
    """

    language: Name
    vocabulary_digest: Digest
    size: Sequence
    index: Sequence
    witnessed: Sequence


class Ask(Meta, frozen=True):
    """ASK: batches wanted since the conversation began, for training and of held-out text.

    witnessed: as in ENLIST, the other way.
    """

    train: Count
    evaluate: Count
    witnessed: Sequence


class Ids(Meta, frozen=True):
    """IDS: one batch. index: of the generator's batches in this run; of held-out ones by themselves."""

    index: Sequence
    phase: Literal["train", "evaluate"]
    lengths: Annotated[tuple[Length, ...], msgspec.Meta(min_length=1, max_length=4_096)]


class Report(Meta, frozen=True):
    """REPORT: the generator's part of a round. loss: mean of its masked-language loss, in nats."""

    batches: Count
    tokens: Sequence
    loss: Real
    seconds: Real
