"""What the two halves of a translation model are to each other: one run's terms, samples and codecs.

Both engines read these; neither talks here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from splitlearn.codecs import Codec, build
from splitlearn.engine.payloads.kept import DEFAULT_BYTES
from splitlearn.errors import WireError
from splitlearn.manifest import links, needs_basis, remembers
from splitlearn.translation import Objective, SourceEncoder, TargetDecoder
from splitlearn.translation.text import Sentences, Special
from splitlearn.wire.messages import Pairing
from splitlearn.wire.samples import Hashes, hash_of

__all__ = ["Codecs", "Corpus", "DecoderRun", "EncoderHalf", "hashes_of", "names_of"]


@dataclass(frozen=True)
class Corpus:
    """One side's sentences: to train on, and held out."""

    train: Sentences
    evaluate: Sentences


@dataclass(frozen=True)
class EncoderHalf:
    """What an encoder party brings to a run. checkpoints: the run's folder for them."""

    encoder: SourceEncoder
    corpus: Corpus
    checkpoints: Path


@dataclass(frozen=True)
class DecoderRun:
    """A run, as the decoder party leads it.

    terms: without conversation and checkpoints, which each conversation has of its own. batch: samples of
    a step; every: steps between checkpoints. cache_bytes: for rows of an encoder that stands still.
    iterations, candidates: of Mask-Predict; evaluated: samples of one question in an evaluation.
    """

    terms: Pairing
    decoder: TargetDecoder
    corpus: Corpus
    special: Special
    batch: int
    every: int
    deadline_s: float
    objective: Objective = field(default_factory=Objective)
    cache_bytes: int = DEFAULT_BYTES
    iterations: int = 10
    candidates: int = 3
    evaluated: int = 32


class Codecs:
    """The codecs of a run's two kinds of tensors.

    Raises WireError for chains that need more than the message itself: a basis, or a memory.
    """

    def __init__(self, terms: Pairing) -> None:
        for name in (terms.activation, terms.gradient):
            if needs_basis(name) or links(name) or remembers(name):
                raise WireError(
                    f"codec {name} needs a basis or remembers other messages; between encoder and "
                    "decoder each message is written by itself: choose another"
                )
        self.rows: Codec = build(terms.activation)
        self.gradient: Codec = build(terms.gradient)


def names_of(samples: Iterable[str], *, naming: str) -> dict[bytes, str]:
    """Sample ids by their hashes, ascending."""
    return dict(sorted((hash_of(sample, naming=naming), sample) for sample in samples))


def hashes_of(train: Iterable[bytes], evaluate: Iterable[bytes]) -> Hashes:
    """As they travel."""
    return tuple(sorted(train)), tuple(sorted(evaluate))
