"""What goes through the door as a generator's ids: nothing but ids of the agreed vocabulary, read back."""

from typing import TYPE_CHECKING

from splitlearn.errors import RefusedError, WireError
from splitlearn.wire.ids import IdBatch, pack, unpack
from splitlearn.wire.messages import Ids, Meta
from splitlearn.wire.tensors import Part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["check_written", "pack_ids"]


def pack_ids(batch: IdBatch, *, meta: Meta, vocabulary: int) -> tuple[Part, ...]:
    """The batch as parts. RefusedError for anything but int32 ids in [0, vocabulary) with their flags."""
    if not isinstance(meta, Ids) or meta.lengths != batch.lengths:
        raise RefusedError(
            "the lengths beside the ids are not those of the batch; our own generator is at fault",
            rule="content.lengths",
        )
    try:
        return pack(batch, vocabulary=vocabulary)
    except WireError as error:
        raise RefusedError(f"no batch of ids: {error}", rule="content.ids") from error


def check_written(parts: tuple[Part, ...], *, batch: IdBatch, vocabulary: int) -> None:
    """Read our own bytes as the discriminator will; RefusedError if they are not this batch."""
    try:
        back = unpack(parts, lengths=batch.lengths, vocabulary=vocabulary)
    except WireError as error:
        raise RefusedError(f"ids cannot be read back: {error}", rule="content.layout") from error
    if not (_same(back.ids, batch.ids) and _same(back.replaced, batch.replaced)):
        raise RefusedError("ids read back as others than were written", rule="content.layout")


def _same(one: "NDArray[np.generic]", other: "NDArray[np.generic]") -> bool:
    return one.tobytes() == other.tobytes()
