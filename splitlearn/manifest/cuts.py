"""What a job says of its cuts and of its mode, and what of it makes no sense."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from splitlearn.manifest.chains import links, remembers
from splitlearn.manifest.fields import Fault
from splitlearn.manifest.tables import CutTable

if TYPE_CHECKING:
    from splitlearn.manifest.job import Job

__all__ = ["cut_faults"]


def cut_faults(job: "Job") -> Iterator[Fault]:
    """Every impossible combination in a job's [cut] and the tables below it."""
    yield from _place_faults(job.cut)
    yield from _mode_faults(job.cut)
    yield from _cache_faults(job)


def _place_faults(cut: CutTable) -> Iterator[Fault]:
    if cut.top == 0 or 0 < cut.top <= cut.bottom:
        yield Fault(
            "cut.top",
            f"is {cut.top} and cut.bottom is {cut.bottom}, which leave no layer to the peer; "
            "it takes a layer above cut.bottom, or a negative number counted from the end",
        )
    if cut.train_bottom and not cut.sends_gradients:
        yield Fault(
            "cut.train_bottom",
            f'is true, but in mode "{cut.mode}" no gradient comes back to the bottom; '
            'it takes false, or cut.mode = "full"',
        )
    for name, bottleneck in (("lower", cut.lower), ("upper", cut.upper)):
        key = f"cut.{name}"
        if bottleneck.method == "none" and bottleneck.rank:
            yield Fault(
                f"{key}.rank",
                f'is {bottleneck.rank} without {key}.method; add "pca" or "sft" there',
            )
        if bottleneck.method != "none" and not bottleneck.rank:
            yield Fault(
                f"{key}.rank", f'is missing or 0; method "{bottleneck.method}" takes 1 or more'
            )
        if bottleneck.method == "pca" and bottleneck.public_text is None:
            yield Fault(
                f"{key}.public_text", 'is missing; method "pca" takes a file with one text a line'
            )
        if bottleneck.method != "pca" and bottleneck.public_text is not None:
            yield Fault(f"{key}.public_text", 'has a use with method "pca" only; leave it out')


def _mode_faults(cut: CutTable) -> Iterator[Fault]:
    for mode in ("side", "lora"):
        if cut.mode != mode and mode in cut.model_fields_set:
            yield Fault(
                f"cut.{mode}",
                f'has no use in mode "{cut.mode}"; leave it out, or take mode "{mode}"',
            )
    if cut.mode == "side":
        if cut.side.public_text is None:
            yield Fault("cut.side.public_text", "is missing; it takes a file with one text a line")
        if cut.upper.method != "none":
            yield Fault(
                "cut.upper.method",
                f'is {cut.upper.method}, and in mode "side" the taps are what is narrow there; '
                "leave it out",
            )


def _cache_faults(job: "Job") -> Iterator[Fault]:
    """What outputs that are kept do not go together with."""
    cut = job.cut
    if cut.sends_gradients and cut.cache:
        yield Fault("cut.cache", f'is true, but in mode "{cut.mode}" the peer trains; take false')
    if job.chain and (cut.mode == "side" or cut.keeps_outputs):
        yield Fault(
            "cut.mode" if cut.mode == "side" else "cut.cache",
            "is for one compute party; leave out [[chain]], or take mode features without cut.cache",
        )
    if cut.sends_gradients or not cut.keeps_outputs:
        return
    for kind in ("activation", "output"):
        name = getattr(job.codec, kind)
        if remembers(name) or links(name):
            yield Fault(
                f"codec.{kind}",
                f"is {name}, which remembers messages, and where outputs are kept some are never sent; "
                "take another codec, or cut.cache = false",
            )
    if job.schedule.staleness:
        yield Fault(
            "schedule.staleness",
            f"is {job.schedule.staleness}, and steps do not interleave where outputs are kept; leave it "
            "out, or take cut.cache = false",
        )
