"""Where a model is cut and how narrow it is there. Numbers only: no model and no tensor.

Layers are counted from 0 to L. The trusted party keeps layers [0, first) and [last, L), with the
embeddings, head and loss; the compute party gets the trunk, layers [first, last). In a chain several
compute parties have a part of it each, in the order of the layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from splitlearn.errors import ManifestError
from splitlearn.wire.messages import BottleneckSpec, CutSpec

__all__ = ["NONE", "Bottleneck", "Cut", "Method", "cut_of", "fault", "place", "spec_of"]

Method = Literal["none", "pca", "sft"]


@dataclass(frozen=True)
class Bottleneck:
    """How a cut narrows what crosses it, from the model's width to `rank` (0 where it does not)."""

    method: Method = "none"
    rank: int = 0


NONE = Bottleneck()


@dataclass(frozen=True)
class Cut:
    """The trunk is layers [first, last); lower and upper narrow its entrance and its exit.

    "pca" puts a pair of linears at the cut and keeps every block whole. "sft" runs through a block:
    through first-1 at the lower cut and through last-1 at the upper one; the attention half belongs
    to the party that sends, the feed-forward half to the one that receives.
    """

    first: int
    last: int
    lower: Bottleneck = field(default=NONE)
    upper: Bottleneck = field(default=NONE)

    @property
    def narrow(self) -> bool:
        """Whether any bottleneck makes the merged model another model than the original."""
        return self.lower.method != "none" or self.upper.method != "none"

    @property
    def whole(self) -> range:
        """The layers that the trunk holds whole: all of its own, but for one cut through by sft."""
        return range(self.first, self.last - (self.upper.method == "sft"))

    def entrance(self, width: int) -> int:
        """Columns of what the trunk is sent, in a model of this width.

        >>> Cut(2, 5, upper=Bottleneck("pca", 8)).entrance(384)
        384
        """
        return width if self.lower.method == "none" else self.lower.rank

    def exit(self, width: int) -> int:
        """Columns of what the trunk sends back, in a model of this width."""
        return width if self.upper.method == "none" else self.upper.rank

    def parts(self, starts: Sequence[int]) -> tuple["Cut", ...]:
        """The trunk shared out: each part but the first begins at one of `starts`, in order.

        The trunk's bottlenecks are the first one's entrance and the last one's exit; between two
        parts rows keep the model's width.

        >>> [(part.first, part.last) for part in Cut(1, 5).parts((2, 4))]
        [(1, 2), (2, 4), (4, 5)]
        """
        bounds = (self.first, *starts, self.last)
        assert all(a < b for a, b in pairwise(bounds)), "every part has a layer"
        parts = [Cut(first, last) for first, last in pairwise(bounds)]
        parts[0] = replace(parts[0], lower=self.lower)
        parts[-1] = replace(parts[-1], upper=self.upper)
        return tuple(parts)


def place(
    *,
    bottom: int,
    top: int,
    layers: int,
    width: int,
    lower: Bottleneck = NONE,
    upper: Bottleneck = NONE,
) -> Cut:
    """The cut that a job file means: `bottom` layers below, `top` counted from the end if negative.

    ManifestError if the model has no such layers or is not that wide.

    >>> place(bottom=2, top=-1, layers=6, width=384)
    Cut(first=2, last=5, lower=Bottleneck(method='none', rank=0), upper=Bottleneck(method='none', rank=0))
    """
    cut = Cut(bottom, layers + top if top < 0 else top, lower, upper)
    found = fault(cut, layers=layers, width=width)
    if found is not None:
        raise ManifestError(
            f"[cut] bottom = {bottom}, top = {top} does not fit this model: {found}"
        )
    return cut


def fault(cut: Cut, *, layers: int, width: int) -> str | None:
    """What is impossible about a cut through a model of so many layers and columns, if anything.

    >>> fault(Cut(3, 3), layers=6, width=32)
    'the trunk would be layers [3, 3) of 6; it needs at least one, and one must stay below it'
    """
    if not 1 <= cut.first < cut.last <= layers:
        return (
            f"the trunk would be layers [{cut.first}, {cut.last}) of {layers}; "
            "it needs at least one, and one must stay below it"
        )
    for where, bottleneck in (("lower", cut.lower), ("upper", cut.upper)):
        if bottleneck.method == "none":
            if bottleneck.rank != 0:
                return f"the {where} cut has rank {bottleneck.rank} and no method; choose 'pca' or 'sft'"
        elif not 1 <= bottleneck.rank <= width:
            return f"the {where} cut has rank {bottleneck.rank}; it must lie between 1 and the width {width}"
    return None


def spec_of(cut: Cut) -> CutSpec:
    """The cut as it stands in an offer."""
    return CutSpec(
        first=cut.first,
        last=cut.last,
        lower=BottleneckSpec(method=cut.lower.method, rank=cut.lower.rank),
        upper=BottleneckSpec(method=cut.upper.method, rank=cut.upper.rank),
    )


def cut_of(spec: CutSpec) -> Cut:
    """The cut that an offer means. Whether it fits the model is for `fault` to say."""
    return Cut(
        spec.first,
        spec.last,
        Bottleneck(spec.lower.method, spec.lower.rank),
        Bottleneck(spec.upper.method, spec.upper.rank),
    )
