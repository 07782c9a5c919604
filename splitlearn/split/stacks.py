"""Who has which layers, where they are of one stack and where they are of two, counted on. Numbers only."""

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import border_of, family_of
from splitlearn.split.cut import Cut

__all__ = ["parts_of"]


def parts_of(model: PreTrainedModel, *, cut: Cut, starts: Sequence[int]) -> tuple[Cut, ...]:
    """The trunk shared out as `cut.parts(starts)` says; of two stacks, each party has layers of one.

    The first layers of the decoder, below the first party that begins there, are nobody's: they stay here.
    ManifestError where no party has layers of the encoder, or none of the decoder, or its very first one.
    """
    parts, border = cut.parts(starts), border_of(model.config)
    if family_of(model).upper is None or border is None:
        return parts
    over = [part for part in parts if part.first < border <= part.last]
    above = [part.first for part in parts if part.first >= border]
    if len(over) != 1 or not above or min(above) == border:
        raise ManifestError(
            f"cut.stack is both, and the parties begin at layers {[part.first for part in parts]}; those of "
            f"the decoder begin at {border}, so it takes one below, and one above {border}, which stays here"
        )
    return tuple(replace(part, last=border) if part in over else part for part in parts)
