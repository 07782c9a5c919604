"""The codecs of one party, by kind and phase, what they remember, and when they have to forget.

Two sorts remember. An encoder that starts from what it wrote before (`lowrank-`) would write other bytes
after a restart, unless an undisturbed run and a resumed one begin with nothing at the same steps: at the
beginning of each conversation and after each checkpoint. Rows kept by sample on both sides (`delta-`)
last for a whole conversation, or they would never see a second epoch.

B examples
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from torch import Tensor

from splitlearn.codecs import About, Codec, Delta
from splitlearn.engine.payloads.bases import codecs_of
from splitlearn.engine.payloads.kept import Kept
from splitlearn.errors import WireError
from splitlearn.manifest import remembers
from splitlearn.roles import Kind
from splitlearn.wire.messages import Offer, StepTensor

__all__ = ["Coders", "Phase", "spans_of"]

Phase = Literal["train", "evaluate", "generate"]


class Coders:
    """One party's codecs. names, bases: as for `codecs_of`, whose errors it raises. kept: for `delta-`."""

    def __init__(
        self,
        names: Mapping[str, str],
        bases: Mapping[str, Tensor],
        *,
        kept: Kept,
        stages: Sequence[tuple[int, Mapping[str, str]]] = (),
    ) -> None:
        """stages: names that come after, each with the first step, from 0, that it is of; ascending."""
        self._starts = [step for step, _ in stages]
        self._names = [names, *(later for _, later in stages)]
        self._bases, self._kept = bases, kept
        self._codecs = self._fresh()

    @classmethod
    def of_offer(cls, offer: Offer, bases: Mapping[str, Tensor], *, kept: Kept) -> "Coders":
        """Those that an offer names, at both ends. WireError for stages that do not ascend."""
        stages = [(s.step, msgspec.structs.asdict(s.codecs)) for s in offer.detail.stages]
        if any(one[0] >= two[0] for one, two in pairwise(stages)):
            raise WireError(
                f"the peer's stages of codecs begin at steps {[step for step, _ in stages]}; they ascend"
            )
        return cls(msgspec.structs.asdict(offer.codecs), bases, kept=kept, stages=stages)

    def of(
        self,
        kind: Kind,
        *,
        phase: Phase,
        step: int = 0,
        samples: tuple[bytes, ...] | None = (),
        spans: tuple[int, ...] = (),
    ) -> Codec:
        """The codec for one message of that kind in a step, counted from 0.

        samples, spans: pseudonyms of its examples and rows of each, as a codec of changes asks for them;
        None where the message itself tells, and none where it has no pseudonyms.

        Other phases neither see nor change what training remembers, and each message of theirs is written
        by itself, so that one done again is the same.
        """
        stage = bisect_right(self._starts, step)
        codec, names = self._codecs[stage][kind], self._names[stage]
        if phase != "train":
            return codecs_of(names, self._bases)[kind] if remembers(names[kind.value]) else codec
        if not isinstance(codec, Delta) or samples == ():
            return codec
        named = kind is Kind.ACTIVATION
        return codec.about(self._kept.of(kind), samples=samples, spans=spans, named=named)

    def keep(self, codec: Codec) -> tuple[bytes, ...]:
        """Remember a message that has been sent or opened; the pseudonyms in it, if it has any."""
        return codec.keep() if isinstance(codec, About) else ()

    def links(self, kind: Kind) -> bool:
        """Whether messages of this kind are written by what changed in their samples."""
        return any(isinstance(codecs[kind], Delta) for codecs in self._codecs)

    @property
    def linking(self) -> bool:
        """Whether any of them keeps rows by sample."""
        return any(map(self.links, self._codecs[0]))

    def begin(self) -> None:
        """A conversation begins: remember nothing at all."""
        self.forget()
        self._kept.clear()

    def forget(self) -> None:
        """A checkpoint is reached: encoders begin with nothing again."""
        self._codecs = self._fresh()

    def _fresh(self) -> list[dict[Kind, Codec]]:
        return [codecs_of(names, self._bases) for names in self._names]


def spans_of(place: StepTensor, *, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Rows that travel of each example."""
    return lengths if place.packed else (place.width,) * len(lengths)
