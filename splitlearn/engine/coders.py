"""The codecs of one party, by kind and phase, what they remember, and when they have to forget.

Two sorts remember. An encoder that starts from what it wrote before (`lowrank-`) would write other bytes
after a restart, unless an undisturbed run and a resumed one begin with nothing at the same steps: at the
beginning of each conversation and after each checkpoint. Rows kept by sample on both sides (`delta-`)
last for a whole conversation, or they would never see a second epoch.

B examples
"""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from splitlearn.codecs import About, Codec, Delta
from splitlearn.engine.bases import codecs_of
from splitlearn.engine.kept import Kept
from splitlearn.manifest import remembers
from splitlearn.roles import Kind
from splitlearn.wire.messages import StepTensor

__all__ = ["Coders", "Phase", "spans_of"]

Phase = Literal["train", "evaluate", "generate"]


class Coders:
    """One party's codecs. names, bases: as for `codecs_of`, whose errors it raises. kept: for `delta-`."""

    def __init__(
        self, names: Mapping[str, str], bases: Mapping[str, Tensor], *, kept: Kept
    ) -> None:
        self._names, self._bases, self._kept = names, bases, kept
        self._codecs = codecs_of(names, bases)

    def of(
        self,
        kind: Kind,
        *,
        phase: Phase,
        samples: tuple[bytes, ...] | None = (),
        spans: tuple[int, ...] = (),
    ) -> Codec:
        """The codec for one message of that kind.

        samples, spans: pseudonyms of its examples and rows of each, as a codec of changes asks for them;
        None where the message itself tells, and none where it has no pseudonyms.

        Other phases neither see nor change what training remembers, and each message of theirs is written
        by itself, so that one done again is the same.
        """
        codec = self._codecs[kind]
        if phase != "train":
            return (
                codecs_of(self._names, self._bases)[kind]
                if remembers(self._names[kind.value])
                else codec
            )
        if not isinstance(codec, Delta) or samples == ():
            return codec
        named = kind is Kind.ACTIVATION
        return codec.about(self._kept.of(kind), samples=samples, spans=spans, named=named)

    def keep(self, codec: Codec) -> tuple[bytes, ...]:
        """Remember a message that has been sent or opened; the pseudonyms in it, if it has any."""
        return codec.keep() if isinstance(codec, About) else ()

    def links(self, kind: Kind) -> bool:
        """Whether messages of this kind are written by what changed in their samples."""
        return isinstance(self._codecs[kind], Delta)

    @property
    def linking(self) -> bool:
        """Whether any of them keeps rows by sample."""
        return any(isinstance(codec, Delta) for codec in self._codecs.values())

    def begin(self) -> None:
        """A conversation begins: remember nothing at all."""
        self.forget()
        self._kept.clear()

    def forget(self) -> None:
        """A checkpoint is reached: encoders begin with nothing again."""
        self._codecs = codecs_of(self._names, self._bases)


def spans_of(place: StepTensor, *, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Rows that travel of each example."""
    return lengths if place.packed else (place.width,) * len(lengths)
