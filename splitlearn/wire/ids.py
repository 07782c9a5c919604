"""Corrupted token ids as bytes and back: a one-way batch of a generator, packed bit by bit, strict.

An id takes as many bits as the vocabulary needs (15 for 30,522 ids, 18 for 250,037), a flag one bit;
padding does not travel. What is not a batch of the agreed vocabulary is a WireError.
"""

# N tokens that travel, B examples

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MAX_VOCABULARY", "IdBatch", "bits_of", "codec_name", "pack", "unpack"]

# Ids: 2^20 is four times the largest multilingual vocabulary in use.
MAX_VOCABULARY = 2**20


@dataclass(frozen=True)
class IdBatch:
    """Examples one after another, without padding.

    ids: (N,) int32, corrupted. replaced: (N,) bool, where an id is not the text's own. lengths: tokens
    of each example; their sum is N.
    """

    ids: "NDArray[np.int32]" = field(repr=False)
    replaced: "NDArray[np.bool_]" = field(repr=False)
    lengths: tuple[int, ...]


def bits_of(vocabulary: int) -> int:
    """Bits that an id of a vocabulary of so many takes.

    >>> bits_of(30_522), bits_of(250_037)
    (15, 18)
    """
    if not 2 <= vocabulary <= MAX_VOCABULARY:
        raise WireError(f"a vocabulary of {vocabulary} ids; expected 2 to {MAX_VOCABULARY}")
    return (vocabulary - 1).bit_length()


def codec_name(vocabulary: int) -> str:
    """How a batch of this vocabulary is written, as a log and a policy name it.

    >>> codec_name(30_522)
    'ids-15'
    """
    return f"ids-{bits_of(vocabulary)}"


def pack(batch: IdBatch, *, vocabulary: int) -> tuple[Part, ...]:
    """The parts of a batch. Raises WireError for ids outside [0, vocabulary)."""
    import numpy as np  # noqa: PLC0415  (a fifth of a second that --help need not wait)

    bits = bits_of(vocabulary)
    _check(batch.ids, replaced=batch.replaced, lengths=batch.lengths, vocabulary=vocabulary)
    planes_NB = (batch.ids[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.int32)) & 1
    ids = np.packbits(planes_NB.astype(np.uint8).reshape(-1))
    flags = np.packbits(batch.replaced)
    return tuple(
        Part(name=name, dtype="U8", shape=data.shape, data=data.tobytes())
        for name, data in (("ids", ids), ("replaced", flags))
    )


def unpack(parts: tuple[Part, ...], *, lengths: tuple[int, ...], vocabulary: int) -> IdBatch:
    """What `pack` wrote; one spelling only: bits beyond the last id must be zero."""
    import numpy as np  # noqa: PLC0415  (a fifth of a second that --help need not wait)

    bits, count = bits_of(vocabulary), sum(lengths)
    sizes = {"ids": -(-count * bits // 8), "replaced": -(-count // 8)}
    if tuple((part.name, part.dtype, part.shape) for part in parts) != tuple(
        (name, "U8", (size,)) for name, size in sizes.items()
    ):
        raise WireError(
            f"a batch of {count} ids of {bits} bits came as {[(p.name, p.dtype, p.shape) for p in parts]}; "
            f"expected U8 parts of {sizes}; the generator's encoder is at fault"
        )
    ids_bits, flag_bits = (np.unpackbits(np.frombuffer(part.data, np.uint8)) for part in parts)
    if ids_bits[count * bits :].any() or flag_bits[count:].any():
        raise WireError("a batch of ids has bits set beyond its last token")
    weights = 1 << np.arange(bits - 1, -1, -1, dtype=np.int32)
    ids = ids_bits[: count * bits].reshape(count, bits).astype(np.int32) @ weights
    replaced = flag_bits[:count].astype(np.bool_)
    _check(ids, replaced=replaced, lengths=lengths, vocabulary=vocabulary)
    return IdBatch(ids.astype(np.int32), replaced, lengths)


def _check(
    ids: "NDArray[np.int32]",
    *,
    replaced: "NDArray[np.bool_]",
    lengths: tuple[int, ...],
    vocabulary: int,
) -> None:
    import numpy as np  # noqa: PLC0415  (a fifth of a second that --help need not wait)

    count = sum(lengths)
    if ids.shape != (count,) or replaced.shape != (count,) or count == 0 or min(lengths) < 1:
        raise WireError(
            f"{len(lengths)} examples of {count} tokens with {ids.shape} ids and {replaced.shape} "
            "flags; expected one of each for every token, and a token in every example"
        )
    if ids.dtype != np.int32 or replaced.dtype != np.bool_:
        raise WireError(
            f"ids of {ids.dtype} and flags of {replaced.dtype}; expected int32 and bool"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        # The id itself stays out of the sentence: it is a word of somebody's text.
        raise WireError(f"an id lies outside [0, {vocabulary}); another vocabulary was used")
