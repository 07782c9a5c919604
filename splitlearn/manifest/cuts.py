"""[cut] and the tables below it: the keys of cuts and modes, and what of them makes no sense together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from splitlearn.manifest.chains import links, needs_basis, remembers
from splitlearn.manifest.fields import Fault, FileField, Table

if TYPE_CHECKING:
    from splitlearn.manifest.job import Job

__all__ = ["GRADIENTS", "BottleneckTable", "CutTable", "LoraTable", "SideTable", "cut_faults"]

# Modes in which gradients leave.
GRADIENTS = frozenset({"lora", "full"})


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
    """Layers [0, bottom) and [top, end) stay here; those between go to the peer.

    stack: whose layers, of a model that has an encoder and a decoder. Where they are the decoder's, all
    of the encoder stays here, below the cut. Of both the decoder's are counted on from the encoder's: a party
    of a chain has layers of one of the two, and the decoder's first ones stay here.
    """

    stack: Literal["encoder", "decoder", "both"] = Field(
        default="encoder", description="encoder, decoder or both"
    )

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
    def trains_memory(self) -> bool:
        """Whether something trains below what layers of a decoder are handed of its encoder."""
        return self.sends_gradients and (self.train_bottom or self.stack == "both")

    @property
    def sends_gradients(self) -> bool:
        """Whether something at the peer trains, so that gradients leave."""
        return self.mode in GRADIENTS


def cut_faults(job: "Job") -> Iterator[Fault]:
    """Every impossible combination in a job's [cut] and the tables below it."""
    yield from _place_faults(job.cut)
    yield from _mode_faults(job.cut)
    yield from _cache_faults(job)
    if job.cut.stack != "encoder":
        yield from _decoder_faults(job)


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


def _decoder_faults(job: "Job") -> Iterator[Fault]:
    """What layers of a decoder do not go together with: rows of two texts cross the cut in one tensor."""
    cut, task = job.cut, "sequence-to-sequence"
    if job.model.task != task:
        yield Fault(
            "cut.stack",
            f"is {cut.stack}, which models of task {task} have; leave it out of {job.model.task}",
        )
    if cut.stack == "both" and not job.chain:
        yield Fault(
            "cut.stack", "is both, which takes two parties; add a [[chain]] for the decoder's"
        )
    for name, bottleneck in (("lower", cut.lower), ("upper", cut.upper)):
        if bottleneck.method != "none":
            yield Fault(
                f"cut.{name}.method",
                f"is {bottleneck.method}, and no cut narrows the rows of an encoder below a decoder; leave "
                "it out",
            )
    if cut.mode == "side" or cut.keeps_outputs:
        yield Fault(
            "cut.mode" if cut.mode == "side" else "cut.cache",
            "is for one text a row, and a decoder's trunk gets two; take mode features without cut.cache, "
            "lora or full",
        )
    for kind in ("activation", "output", "inner"):
        for codec in (job.codec, *job.codec.later):
            name = getattr(codec, kind)
            if needs_basis(name) or links(name):
                yield Fault(
                    f"codec.{kind}",
                    f"is {name}, which is for rows of one text; take a codec without pca- or delta-",
                )
    if job.schedule.staleness:
        yield Fault(
            "schedule.staleness",
            f"is {job.schedule.staleness}, and gradients of an encoder below a decoder are summed in the "
            "order of exact steps; leave it out",
        )
    if job.canary.file is not None:
        yield Fault(
            "canary.file",
            "has a use where frames can be attacked, and those of a decoder cannot yet; leave it out",
        )
