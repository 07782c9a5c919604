"""The codecs of one conversation, by kind and phase, and when those that remember have to forget.

A codec that starts from what it wrote before writes other bytes after a restart, unless both an
undisturbed run and a resumed one begin with nothing at the same steps: at the beginning of each
conversation and after each checkpoint.
"""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from splitlearn.codecs import Codec
from splitlearn.engine.bases import codecs_of
from splitlearn.manifest import remembers
from splitlearn.roles import Kind

__all__ = ["Coders", "Phase"]

Phase = Literal["train", "evaluate"]


class Coders:
    """One party's codecs. names, bases: as for `codecs_of`, whose errors it raises."""

    def __init__(self, names: Mapping[str, str], bases: Mapping[str, Tensor]) -> None:
        self._names, self._bases = names, bases
        self._codecs = codecs_of(names, bases)

    def of(self, kind: Kind, *, phase: Phase) -> Codec:
        """The codec for the next message of that kind.

        Evaluations neither see nor change what training remembers, and each message of theirs is written
        by itself, so that one done again is the same.
        """
        if phase == "evaluate" and remembers(self._names[kind.value]):
            return codecs_of(self._names, self._bases)[kind]
        return self._codecs[kind]

    def forget(self) -> None:
        """Begin with nothing again: a checkpoint is reached, or a conversation begins."""
        self._codecs = codecs_of(self._names, self._bases)
