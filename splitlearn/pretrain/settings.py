"""What a pre-training party decides about its model and its steps, with units. No torch."""

from dataclasses import dataclass, field
from typing import Literal

from splitlearn.errors import ManifestError
from splitlearn.pretrain.text import TextSettings

__all__ = [
    "DISCRIMINATOR_WEIGHT",
    "DiscriminatorSettings",
    "GeneratorSettings",
    "ModelSettings",
    "TrainingSettings",
]

# Of ELECTRA's joint loss (arXiv 2003.10555): 1.0 * MLM + 50.0 * replaced-token detection.
DISCRIMINATOR_WEIGHT = 50.0


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A model to build, or to load where `path` names a folder or a hub's model.

    width: of the hidden states, embedding: of the embeddings, inner: of the feed-forward layers;
    positions: tokens of the longest example; spread: standard deviation of
    the first weights (0.02 suits widths of 768; about width ** -0.5 a small model). All
    but `path` and `attention` are passed over if `path` is set.
    """

    path: str | None = None
    layers: int = 4
    width: int = 256
    heads: int = 4
    inner: int = 1024
    embedding: int = 128
    positions: int = 512
    dropout: float = 0.1
    spread: float = 0.02
    attention: Literal["sdpa", "eager"] = "sdpa"

    def __post_init__(self) -> None:
        sizes = (self.layers, self.width, self.heads, self.inner, self.embedding, self.positions)
        if (
            min(sizes) < 1
            or self.width % self.heads
            or not 0 <= self.dropout < 1
            or self.spread <= 0
        ):
            raise ManifestError(
                f"a model of {self.layers} layers, width {self.width}, {self.heads} heads, inner width "
                f"{self.inner}, embeddings of {self.embedding}, {self.positions} positions, dropout "
                f"{self.dropout}; expected sizes above 0, and heads that divide the width"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """AdamW under a schedule of transformers.

    total_steps: of the whole run, all its rounds; after them the linear schedule's rate is 0.
    warmup_steps: of them, with a rising rate. clip: the largest norm of a step's gradient.
    """

    total_steps: int
    learning_rate: float = 5e-4
    warmup_steps: int = 100
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    weight_decay: float = 0.01
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if (
            self.total_steps < 1
            or self.learning_rate <= 0
            or self.warmup_steps < 0
            or self.clip <= 0
        ):
            raise ManifestError(
                f"training of {self.total_steps} steps, {self.warmup_steps} of them warming up, rate "
                f"{self.learning_rate}, clip {self.clip}; expected numbers above 0 (warm-up may be 0)"
            )


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """One language's generator. width: ids of an example; batch: examples; mask: share of ordinary tokens.

    held_out: share of the passages that never train. temperature: of the draw that replaces.
    """

    text: TextSettings
    training: TrainingSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    width: int = 128
    batch: int = 32
    mask: float = 0.15
    temperature: float = 1.0
    held_out: float = 0.05


@dataclass(frozen=True, kw_only=True)
class DiscriminatorSettings:
    """The discriminator that all languages share."""

    training: TrainingSettings
    model: ModelSettings = field(default_factory=ModelSettings)
