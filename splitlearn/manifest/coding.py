"""[codec] and [[codec.stage]]: their keys, and what of them makes no sense together."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from splitlearn.manifest.chains import FAMILIES, STAGES, links, needs_basis
from splitlearn.manifest.fields import CodecField, Fault, FileField, Table

if TYPE_CHECKING:
    from splitlearn.manifest.job import Job

__all__ = ["CodecTable", "StageTable", "codec_faults"]

_NAMES = (
    f"{family}{bounds.example} ({bounds.what}, {bounds.least:g} to {bounds.most:g})"
    if bounds
    else family
    for family, bounds in FAMILIES.items()
)


_CHAIN = f"one of {', '.join(_NAMES)}; +{STAGES[0]} may follow all but transform"


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


def codec_faults(job: "Job") -> Iterator[Fault]:
    """Every impossible combination in a job's [codec] and [[codec.stage]]."""
    yield from _base_faults(job)
    yield from _stage_faults(job)


def _base_faults(job: "Job") -> Iterator[Fault]:
    narrow = {"activation": job.cut.lower, "output": job.cut.upper}
    used = False
    for kind in ("activation", "output", "gradient", "input_gradient"):
        if not needs_basis(name := getattr(job.codec, kind)):
            continue
        used = True
        if kind not in narrow:
            yield Fault(
                f"codec.{kind}",
                f"is {name}, and gradients gain next to nothing from a basis; take "
                f"{name.removeprefix('pca-') if 'transform' in name else 'a codec without pca-'}",
            )
        elif narrow[kind].method != "none" or (kind, job.cut.mode) == ("output", "side"):
            yield Fault(
                f"codec.{kind}",
                f"is {name}, and what a low-rank cut sends has no basis; take a codec without pca-",
            )
        elif job.codec.public_text is None:
            yield Fault(
                "codec.public_text", f"is missing; codec {name} takes a file with one text a line"
            )
    if job.codec.public_text is not None and not used:
        yield Fault("codec.public_text", "has a use with a pca- codec only; leave it out")
    for kind in ("gradient", "input_gradient"):
        if links(name := getattr(job.codec, kind)):
            yield Fault(
                f"codec.{kind}",
                f"is {name}, and a gradient has little in common with that of an epoch before; take "
                f"{name.removeprefix('delta-')}",
            )
    if links(job.codec.output) and not links(job.codec.activation):
        yield Fault(
            "codec.output",
            f"is {job.codec.output}, and only an activation in a delta- codec says which sample is "
            f"which; take {job.codec.output.removeprefix('delta-')}, or a delta- codec for both",
        )
    if job.canary.file is not None and links(job.codec.activation):
        yield Fault(
            "canary.file",
            f"has no use with codec.activation {job.codec.activation}: a kept frame alone does not "
            "say what the peer can put together; leave it out or take another codec",
        )


def _stage_faults(job: "Job") -> Iterator[Fault]:
    stages = job.codec.stage
    for stage in stages:
        if not stage.named:
            yield Fault(
                "codec.stage", f"after {stage.after} names no codec; name one, or leave it out"
            )
        if isinstance(stage.after, float) and stage.after >= 1:
            yield Fault(
                "codec.stage.after",
                f"is {stage.after}, which is no share; it takes a number below 1, or a whole number of steps",
            )
        for key, name in stage.named.items():
            if links(name) or needs_basis(name):
                yield Fault(
                    f"codec.stage.{key}",
                    f"is {name}, and what the parties keep for a codec is agreed on at the beginning; take "
                    "one without delta- and pca-, or make it the first",
                )
            if key in ("inner", "inner_gradient") and not job.chain:
                yield Fault(f"codec.stage.{key}", "has a use with [[chain]] only; leave it out")
    if len({type(stage.after) for stage in stages}) > 1:
        yield Fault(
            "codec.stage.after", "is a share here and a step there; take one for all stages"
        )
    elif any(one.after >= two.after for one, two in pairwise(stages)):
        yield Fault("codec.stage.after", "does not grow from stage to stage; put them in order")
    if stages and any(links(getattr(job.codec, key)) for key in ("activation", "output")):
        yield Fault("codec.stage", "does not go with a delta- codec; leave it out, or take another")
    if stages and job.canary.file is not None:
        yield Fault(
            "canary.file",
            "has no use with [[codec.stage]]: its frames are read in one codec; leave it out",
        )
