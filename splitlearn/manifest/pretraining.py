"""The tables that a discriminator's and a generator's settings have in common: model and optimiser."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from splitlearn.manifest.fields import Fault, FileField, ModelField, Table

__all__ = ["EncoderTable", "StepsTable", "VocabularyTable", "encoder_faults"]

_DIGEST = r"^[0-9a-f]{64}$"


class VocabularyTable(Table):
    """Which ids stand for what; all parties of a run need the same."""

    file: FileField = Field(description="a tokenizer.json, as splitlearn vocab train writes it")
    digest: str | None = Field(
        default=None,
        pattern=_DIGEST,
        description="the vocabulary's digest, 64 hex digits, as splitlearn vocab show prints it",
    )


class EncoderTable(Table):
    """A model to begin from, or the measures of one to build."""

    path: ModelField | None = Field(
        default=None, description="a folder with a transformers model, or a hub name"
    )
    layers: int = Field(default=4, ge=1, le=256, description="a whole number of layers")
    width: int = Field(default=256, ge=8, le=16_384, description="numbers a token, from 8 up")
    heads: int = Field(default=4, ge=1, le=256, description="attention heads, which divide width")
    inner: int = Field(
        default=1024, ge=8, le=65_536, description="width inside the feed-forward layers"
    )
    embedding: int = Field(default=128, ge=8, le=16_384, description="width of the embeddings")
    positions: int = Field(
        default=512, ge=8, le=131_072, description="tokens of the longest example, from 8 up"
    )
    dropout: float = Field(default=0.1, ge=0, lt=1, description="a share from 0 to below 1")
    spread: float = Field(
        default=0.02, gt=0, le=1, description="standard deviation of the first weights"
    )


class StepsTable(Table):
    """How a party's own model steps."""

    learning_rate: float = Field(default=5e-4, gt=0, le=1, description="a number above 0")
    warmup_steps: int = Field(
        default=100, ge=0, le=10_000_000, description="steps with a rising rate"
    )
    total_steps: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="steps until the rate has fallen to 0; left out, a discriminator takes those of "
        "all rounds and a generator's rate stays",
    )
    weight_decay: float = Field(default=0.01, ge=0, le=1, description="a number from 0 to 1")
    clip: float = Field(
        default=1.0, gt=0, le=1e6, description="the largest norm of a step's gradient"
    )
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = Field(
        default="linear", description="linear, cosine or constant_with_warmup"
    )


def encoder_faults(model: EncoderTable) -> Iterator[Fault]:
    """What is impossible about the measures."""
    if model.path is None and model.width % model.heads:
        yield Fault("model.heads", f"is {model.heads}, which does not divide width {model.width}")
