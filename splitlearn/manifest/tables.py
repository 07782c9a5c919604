"""The tables of job.toml: keys, types, bounds, defaults and what to tell who got one wrong."""

import math
from typing import Literal

from pydantic import Field

from splitlearn.manifest.chains import FAMILIES, STAGES
from splitlearn.manifest.fields import (
    CodecField,
    FileField,
    FolderField,
    ModelField,
    NameField,
    SourceField,
    Table,
)

__all__ = [
    "GRADIENTS",
    "BottleneckTable",
    "CanaryTable",
    "CheckpointTable",
    "CodecTable",
    "CutTable",
    "DataTable",
    "LoraTable",
    "ModelTable",
    "OptimiserTable",
    "PreflightTable",
    "PrivacyTable",
    "RunTable",
    "ScheduleTable",
    "SideTable",
    "StageTable",
    "Task",
]

Task = Literal[
    "sequence-classification",
    "token-classification",
    "question-answering",
    "causal-language-modelling",
    "sequence-to-sequence",
]

_NAMES = (
    f"{family}{bounds.example} ({bounds.what}, {bounds.least:g} to {bounds.most:g})"
    if bounds
    else family
    for family, bounds in FAMILIES.items()
)
_CHAIN = f"one of {', '.join(_NAMES)}; +{STAGES[0]} may follow all but transform"
_COLUMN = "the name of a column; a dot reaches into a column of records, as in answers.text"
# Modes in which gradients leave.
GRADIENTS = frozenset({"lora", "full"})

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


class BottleneckTable(Table):
    """A low-rank cut. `public_text` has one text a line; a PCA basis is fitted to it."""

    method: Literal["none", "pca", "sft"] = Field(default="none", description="none, pca or sft")
    rank: int = Field(
        default=0, ge=0, le=65_536, description="a whole number from 1 up to the hidden width"
    )
    public_text: FileField | None = Field(
        default=None, description="a text file that may be known to anybody, one text a line"
    )


class SideTable(Table):
    """Mode "side": what comes back of several of the peer's layers, and the network that takes it.

    taps: how many of its layers, evenly, the last one always. rank: columns of each, fitted to
    public_text, which has one text a line. width: of the network beside them.
    """

    taps: int = Field(default=4, ge=1, le=64, description="a whole number of layers from 1 to 64")
    rank: int = Field(default=32, ge=1, le=1_024, description="a whole number from 1 to 1024")
    width: int = Field(
        default=96, ge=32, le=1_024, multiple_of=32, description="a multiple of 32 up to 1024"
    )
    public_text: FileField | None = Field(
        default=None, description="a text file that may be known to anybody, one text a line"
    )


class LoraTable(Table):
    """Adapters of mode "lora". where: "trunk", the peer's layers; "all", those that stay here too."""

    rank: int = Field(default=8, ge=1, le=1_024, description="a whole number from 1 to 1024")
    alpha: float = Field(
        default=16.0,
        ge=1e-3,
        le=1e4,
        description="a number from 0.001 to 10000; over the rank it is the scale",
    )
    dropout: float = Field(default=0.0, ge=0, le=0.99, description="a number from 0 to 0.99")
    targets: Literal["attention", "all"] = Field(
        default="attention", description="attention or all, the linear layers of a block"
    )
    where: Literal["trunk", "all"] = Field(default="trunk", description="trunk or all")


class CutTable(Table):
    """Layers [0, bottom) and [top, end) stay here; those between go to the peer."""

    bottom: int = Field(
        default=2,
        ge=1,
        le=65_536,
        description="a whole number of first layers that stay here, at least 1",
    )
    top: int = Field(
        default=-1,
        ge=-65_536,
        le=65_536,
        description="the first of the last layers that stay here; negative counts from the end",
    )
    mode: Literal["features", "side", "lora", "full"] = Field(
        default="features", description="features, side, lora or full"
    )
    cache: bool | None = Field(
        default=None,
        description="true or false: whether what comes back is kept and not asked for again; left "
        "out, true in mode side",
    )
    train_bottom: bool = Field(default=False, description="true or false")
    lower: BottleneckTable = BottleneckTable()
    upper: BottleneckTable = BottleneckTable()
    side: SideTable = SideTable()
    lora: LoraTable = LoraTable()

    @property
    def keeps_outputs(self) -> bool:
        """Whether outputs that repeat are kept here, and steps done without the peer."""
        return self.mode == "side" if self.cache is None else self.cache

    @property
    def exit_rank(self) -> int:
        """Columns of what comes back where it is not the model's width; else 0."""
        return self.side.taps * self.side.rank if self.mode == "side" else self.upper.rank

    @property
    def sends_gradients(self) -> bool:
        """Whether something at the peer trains, so that gradients leave."""
        return self.mode in GRADIENTS


class StageTable(Table):
    """Codecs that take the place of those before, for the rest of the run; others stay."""

    after: int | float = Field(
        gt=0,
        le=10_000_000,
        description="a whole number of steps from 1 up, or a share of all steps between 0 and 1",
    )
    activation: CodecField | None = Field(default=None, description=_CHAIN)
    output: CodecField | None = Field(default=None, description=_CHAIN)
    gradient: CodecField | None = Field(default=None, description=_CHAIN)
    input_gradient: CodecField | None = Field(default=None, description=_CHAIN)
    inner: CodecField | None = Field(default=None, description=_CHAIN)
    inner_gradient: CodecField | None = Field(default=None, description=_CHAIN)

    def step(self, *, total: int) -> int:
        """The first step, counted from 0, with these codecs, of `total`."""
        return self.after if isinstance(self.after, int) else math.ceil(self.after * total)

    @property
    def named(self) -> dict[str, str]:
        """The codecs that this stage names, by key."""
        return self.model_dump(exclude={"after"}, exclude_none=True)


class CodecTable(Table):
    """How each kind of tensor is written; gradients travel only where a mode sends them.

    inner, inner_gradient: what goes from one compute party of a chain to the next and back, both on
    its way to the trusted party, who passes it on, and from there.
    """

    activation: CodecField = Field(default="int8+zstd", description=_CHAIN)
    output: CodecField = Field(default="fp16", description=_CHAIN)
    gradient: CodecField = Field(default="fp16", description=_CHAIN)
    input_gradient: CodecField = Field(default="fp16", description=_CHAIN)
    inner: CodecField = Field(default="int8+zstd", description=_CHAIN)
    inner_gradient: CodecField = Field(default="fp16", description=_CHAIN)
    cache_mb: int = Field(
        default=1024,
        ge=1,
        le=1_048_576,
        description="a whole number of MiB for rows that delta- codecs keep, on disk at each party",
    )
    public_text: FileField | None = Field(
        default=None,
        description=(
            "a text file that may be known to anybody, one text a line, that the bases of pca- codecs "
            "are fitted to"
        ),
    )
    stage: tuple[StageTable, ...] = Field(
        default=(),
        strict=False,
        max_length=8,
        description="a table [[codec.stage]] for each change of codecs during a run, in order",
    )

    @property
    def later(self) -> tuple["CodecTable", ...]:
        """The codecs of each stage, whole: what it does not name is as before it."""
        out = list[CodecTable]()
        for stage in self.stage:
            before = out[-1] if out else self
            out.append(before.model_copy(update=stage.named))
        return tuple(out)


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
