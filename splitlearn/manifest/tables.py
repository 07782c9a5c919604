"""The tables of job.toml: keys, types, bounds, defaults and what to tell who got one wrong."""

from typing import Literal

from pydantic import Field

from splitlearn.manifest.fields import (
    DeviceField,
    FileField,
    FolderField,
    ModelField,
    NameField,
    PrecisionField,
    SourceField,
    Table,
)

__all__ = [
    "CanaryTable",
    "CheckpointTable",
    "DataTable",
    "ModelTable",
    "OptimiserTable",
    "PreflightTable",
    "PrivacyTable",
    "RunTable",
    "ScheduleTable",
    "Task",
]

Task = Literal[
    "sequence-classification",
    "token-classification",
    "question-answering",
    "causal-language-modelling",
    "sequence-to-sequence",
]

_COLUMN = "the name of a column; a dot reaches into a column of records, as in answers.text"

_SOURCE = "a csv, tsv, jsonl or parquet file, or a hub name as owner/name:config@split"


class RunTable(Table):
    name: NameField = Field(
        description="a name of up to 64 letters, digits and ._+-, the first a letter or digit"
    )
    folder: FolderField = Field(description="the folder that gets all this run writes")
    seed: int = Field(
        default=0, ge=0, le=10_000_000, description="a whole number from 0 to 10000000"
    )
    deadline_s: float = Field(
        default=60.0, gt=0, le=86_400, description="seconds to wait for the peer, up to 86400"
    )
    device: DeviceField = "cpu"
    precision: PrecisionField = "float32"


class ModelTable(Table):
    path: ModelField = Field(description="a folder with a transformers model, or a hub name")
    task: Task = Field(
        description="sequence-classification, token-classification, question-answering, "
        "causal-language-modelling or sequence-to-sequence"
    )
    labels: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        min_length=2,
        max_length=65_536,
        description="a list of at least two different label names; left out, the training data's",
    )
    attention: Literal["sdpa", "eager"] = Field(default="sdpa", description="sdpa or eager")


class DataTable(Table):
    """Columns, one group a task: text, text_pair, label / tokens, tags / four for answers / text /
    text, target.
    """

    train: SourceField = Field(description=_SOURCE)
    evaluate: SourceField | None = Field(
        default=None,
        description=_SOURCE,
    )
    text: str | None = Field(default=None, min_length=1, description=_COLUMN)
    text_pair: str | None = Field(default=None, min_length=1, description=_COLUMN)
    label: str | None = Field(default=None, min_length=1, description=_COLUMN)
    tokens: str | None = Field(default=None, min_length=1, description=_COLUMN)
    tags: str | None = Field(default=None, min_length=1, description=_COLUMN)
    question: str | None = Field(default=None, min_length=1, description=_COLUMN)
    context: str | None = Field(default=None, min_length=1, description=_COLUMN)
    answer_text: str | None = Field(default=None, min_length=1, description=_COLUMN)
    answer_start: str | None = Field(default=None, min_length=1, description=_COLUMN)
    target: str | None = Field(default=None, min_length=1, description=_COLUMN)
    max_length: int = Field(
        default=128, ge=8, le=131_072, description="a whole number of tokens, from 8 to 131072"
    )
    join: bool = Field(
        default=False,
        description="true: several texts in one row of up to max_length tokens, none of which sees "
        "another; false: a row for each",
    )


class OptimiserTable(Table):
    name: Literal["adamw", "sgd"] = Field(default="adamw", description="adamw or sgd")
    learning_rate: float = Field(default=2e-5, gt=0, le=1e3, description="a number above 0")
    weight_decay: float = Field(default=0.01, ge=0, le=1e3, description="a number from 0 up")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="a number from 0 to below 1")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="a number from 0 to below 1")
    epsilon: float = Field(default=1e-8, gt=0, le=1, description="a number above 0, up to 1")
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description=(
            "how long the whole model's gradient may be in a step, a number above 0 such as 1.0; it steadies "
            "training and hides nothing: for labels there is privacy.gradient_clip, of one example's"
        ),
    )


class ScheduleTable(Table):
    name: Literal["constant", "linear", "cosine"] = Field(
        default="linear", description="constant, linear or cosine"
    )
    warmup_steps: int = Field(
        default=0, ge=0, le=10_000_000, description="a whole number of optimiser steps from 0 up"
    )
    epochs: int | None = Field(
        default=None, ge=1, le=10_000, description="a whole number from 1 to 10000"
    )
    steps: int | None = Field(
        default=None, ge=1, le=10_000_000, description="a whole number of optimiser steps from 1 up"
    )
    batch_size: int = Field(
        default=32, ge=1, le=4_096, description="a whole number of examples, from 1 to 4096"
    )
    micro_batches: int = Field(
        default=1,
        ge=1,
        le=4_096,
        description="a whole number of pieces of a batch, from 1 to batch_size",
    )
    order: Literal["fill-drain", "1f1b"] = Field(
        default="1f1b", description="fill-drain or 1f1b; both do the same sums"
    )
    in_flight: int = Field(
        default=8,
        ge=1,
        le=16,
        description="a whole number of pieces under way at once, from 1 to 16; it bounds memory",
    )
    staleness: int = Field(
        default=0,
        ge=0,
        le=4,
        description=(
            "a whole number of steps that a gradient's weights may be behind, from 0, which is exact, "
            "to 4; each keeps a copy more of what trains"
        ),
    )
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="a whole number of steps from 1 up, after each of which held-out data are scored",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="a whole number of such scores in a row, none of them better, that end the run",
    )
    overlap: bool = Field(
        default=True,
        description="true: encode, log and send beside the sums; false: all in turn, so that a log "
        "written again has the same order",
    )


class CheckpointTable(Table):
    every_steps: int = Field(
        default=50, ge=1, le=10_000_000, description="a whole number of optimiser steps from 1 up"
    )
    best: bool | None = Field(
        default=None,
        description="true: the state with the best score stays too, and is what evaluate, generate and "
        "export take; false: they take the newest; left out, true where schedule.patience is given",
    )


class PrivacyTable(Table):
    """Protection of labels against whoever gets gradients, and nothing else: not of texts, which can
    be read from activations whatever stands here. Off unless asked for. Figures are of labels given
    the texts; docs/decisions/0009-label-protection.md has what they cover.

    label_epsilon: training labels are randomised once, before anything is computed from them, so
    that no use of them costs more; it also covers the trained model. Another run folder draws anew,
    and epsilons add up. Take this one first: for the same epsilon it costs less accuracy.
    gradient_noise, gradient_clip: Gaussian noise on each example's gradient by its logits, the one
    place where a label enters, so that all that is computed from it is covered. Every epoch and every
    step done again is a release. A multiple below about 2 gives an epsilon of little use, a larger
    one wants much more data than a few thousand examples.
    """

    label_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description=(
            "the epsilon of randomised response on training labels, above 0 up to 100; it covers "
            "each label whatever leaves, and no text"
        ),
    )
    gradient_clip: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description=(
            "the longest that one example's gradient by its logits may be, a number above 0, such as "
            "0.7; alone it hides nothing"
        ),
    )
    gradient_noise: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description=(
            "standard deviation of the noise on it, as a multiple of privacy.gradient_clip, above 0; "
            "it covers labels over all steps, with the epsilon that the run prints, and no text"
        ),
    )
    delta: float = Field(
        default=1e-5,
        gt=0,
        lt=1,
        description="the delta that epsilon of gradient noise is told for, above 0 and below 1",
    )


class CanaryTable(Table):
    """Known examples mixed into training, whose frames are kept, sealed, to measure what they leak.

    They are trained on like the others. Whoever has the log, its key for sealed frames and the public
    model can run the attacks on them (`splitlearn audit attack`); nothing else is kept.
    """

    file: SourceField | None = Field(
        default=None,
        description=f"{_SOURCE}, with the columns of data.train; texts that an auditor may read",
    )
    rate: float = Field(
        default=0.02,
        gt=0,
        le=0.5,
        description="their share of all examples trained on, above 0 up to 0.5",
    )


class PreflightTable(Table):
    """What `splitlearn trusted preflight` measures leakage on, before anything private leaves."""

    public_text: FileField | None = Field(
        default=None,
        description=(
            "a text file that may be known to anybody, one text a line, a few hundred at least; left "
            "out, the one of cut.lower or cut.upper"
        ),
    )
