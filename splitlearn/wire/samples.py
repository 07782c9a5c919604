"""Sample ids as keyed hashes, and as bytes on the wire: how two owners find the samples that both have.

Whoever has the key can hash a guess and look whether it is among them: a hash hides an id from those who
lack the key, and from those who cannot guess it.
"""

import hashlib
from collections.abc import Iterable
from itertools import pairwise

from splitlearn.errors import WireError
from splitlearn.wire.messages import Samples
from splitlearn.wire.tensors import Part

__all__ = ["HASH_BYTES", "Hashes", "hash_of", "pack", "unpack"]

# 128 bits: two of 10 million samples agree by accident once in 10^24 runs.
HASH_BYTES = 16

# Hashes to train on and held-out ones, each ascending and without repeats.
Hashes = tuple[tuple[bytes, ...], tuple[bytes, ...]]

_NAMES = ("train", "evaluate")


def hash_of(sample: str, *, naming: str) -> bytes:
    """BLAKE2b of an id under a key of 64 hex digits.

    >>> hash_of("7", naming="00" * 32) == hash_of("7", naming="11" * 32)
    False
    """
    return hashlib.blake2b(
        sample.encode(), key=bytes.fromhex(naming), digest_size=HASH_BYTES, person=b"pair sample"
    ).digest()


def pack(hashes: Hashes) -> tuple[Part, ...]:
    """The parts of a SAMPLES message."""
    return tuple(
        Part(name=name, dtype="U8", shape=(len(found), HASH_BYTES), data=b"".join(found))
        for name, found in zip(_NAMES, hashes, strict=True)
        if found
    )


def unpack(parts: tuple[Part, ...], *, meta: Samples) -> Hashes:
    """What `pack` wrote. Raises WireError for another layout, repeats, or another order than ascending."""
    counts = {"train": meta.train, "evaluate": meta.evaluate}
    wanted = [(name, "U8", (n, HASH_BYTES)) for name, n in counts.items() if n]
    if [(part.name, part.dtype, part.shape) for part in parts] != wanted:
        raise WireError(
            f"hashes of samples came as {[(p.name, p.dtype, p.shape) for p in parts]}; expected {wanted}"
        )
    by_name = {part.name: bytes(part.data) for part in parts}
    train, evaluate = (_cut(by_name.get(name, b"")) for name in _NAMES)
    for found in (train, evaluate):
        if any(one >= other for one, other in pairwise(found)):
            raise WireError("hashes of samples repeat, or do not ascend")
    if not set(train).isdisjoint(evaluate):
        raise WireError("a sample is both to train on and held out")
    return train, evaluate


def _cut(data: bytes) -> tuple[bytes, ...]:
    pieces: Iterable[int] = range(0, len(data), HASH_BYTES)
    return tuple(data[at : at + HASH_BYTES] for at in pieces)
