"""What a job says of its codecs and of their stages, and what of it makes no sense."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from splitlearn.manifest.chains import links, needs_basis
from splitlearn.manifest.fields import Fault

if TYPE_CHECKING:
    from splitlearn.manifest.job import Job

__all__ = ["codec_faults"]


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
