"""The Merkle tree over a log's lines: roots, and proofs that a root holds a line or extends another.

Hashing as in RFC 6962 section 2.1, proofs checked as in RFC 9162 sections 2.1.3.2 and 2.1.4.2. Pure
functions of hashes; never reads a file, never knows what a line means.
"""

import hashlib
from collections.abc import Sequence

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "Tree",
    "leaf_hash",
    "root_of",
    "verify_consistency",
    "verify_inclusion",
]

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    """Hash of one entry; the 0x00 keeps it from passing for a node.

    >>> leaf_hash(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    return hashlib.sha256(b"\x00" + data).digest()


class Tree:
    """Grows by one leaf at a time, and can prove of any earlier size that it began so.

    Keeps every full subtree's hash, level by level: 64 bytes a leaf.
    """

    def __init__(self) -> None:
        self.size = 0
        # _levels[k] holds the hashes of the full subtrees of 2**k leaves, side by side.
        self._levels: list[bytearray] = [bytearray()]

    def append(self, data: bytes) -> None:
        """Add an entry. Amortised two hashes."""
        node = hashlib.sha256(b"\x00" + data).digest()
        # Each trailing one bit of the old size is a full subtree as tall as the new one.
        size, level = self.size, 0
        levels = self._levels
        levels[0] += node
        while size & 1:
            node = hashlib.sha256(b"\x01" + levels[level][-2 * HASH_BYTES :]).digest()
            size >>= 1
            level += 1
            if level == len(levels):
                levels.append(bytearray())
            levels[level] += node
        self.size += 1

    def root(self) -> bytes:
        """Head of the tree as it stands."""
        return self.root_at(self.size)

    def root_at(self, size: int) -> bytes:
        """Head of the tree when it had `size` leaves."""
        assert 0 <= size <= self.size, f"no beginning of {size} leaves among {self.size}"
        return self._root(0, size) if size else EMPTY_ROOT

    def inclusion(self, index: int) -> tuple[bytes, ...]:
        """Siblings from leaf `index` up to the root."""
        assert 0 <= index < self.size, f"no leaf {index} among {self.size}"
        siblings: list[bytes] = []
        start, count = 0, self.size
        while count > 1:
            half = _half(count)
            if index < start + half:
                siblings.append(self._root(start + half, count - half))
                count = half
            else:
                siblings.append(self._root(start, half))
                start, count = start + half, count - half
        return tuple(reversed(siblings))

    def consistency(self, old_size: int) -> tuple[bytes, ...]:
        """Nodes that show that the tree of `old_size` leaves, at least one, is a beginning of this."""
        assert 0 < old_size <= self.size, f"no beginning of {old_size} leaves among {self.size}"
        return self._proof(0, self.size, old_size, whole=True)

    def _root(self, start: int, count: int) -> bytes:
        """Root over `count` leaves from `start`, a multiple of any full subtree in them."""
        if count & (count - 1) == 0:
            level = count.bit_length() - 1
            at = (start >> level) * HASH_BYTES
            return bytes(self._levels[level][at : at + HASH_BYTES])
        half = _half(count)
        return _node(self._root(start, half), self._root(start + half, count - half))

    def _proof(self, start: int, count: int, size: int, *, whole: bool) -> tuple[bytes, ...]:
        """SUBPROOF of RFC 6962 section 2.1.2; `whole`: the verifier knows the root of this subtree."""
        if size == count:
            return () if whole else (self._root(start, count),)
        half = _half(count)
        if size <= half:
            left = self._proof(start, half, size, whole=whole)
            return (*left, self._root(start + half, count - half))
        right = self._proof(start + half, count - half, size - half, whole=False)
        return (*right, self._root(start, half))


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf hashes, straight from the definition in RFC 6962 section 2.1."""
    if not leaves:
        return EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    half = _half(len(leaves))
    return _node(root_of(leaves[:half]), root_of(leaves[half:]))


def verify_inclusion(
    leaf: bytes, *, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether `root`, of `size` leaves, holds the leaf hash `leaf` at `index`."""
    if not 0 <= index < size:
        return False
    here, last, computed = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if here & 1 or here == last:
            computed = _node(sibling, computed)
            here, last = _climb(here, last)
        else:
            computed = _node(computed, sibling)
        here, last = here >> 1, last >> 1
    return last == 0 and computed == root


def verify_consistency(
    *, old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the tree of `new_root` begins with exactly the tree of `old_root`."""
    if not 0 < old_size <= new_size:
        return False
    if old_size == new_size:
        return not proof and old_root == new_root
    if (
        old_size & (old_size - 1) == 0
    ):  # a power of two: the old root is itself a node of the new tree
        proof = (old_root, *proof)
    if not proof:
        return False
    here, last = old_size - 1, new_size - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    old = new = proof[0]
    for node in proof[1:]:
        if last == 0:
            return False
        if here & 1 or here == last:
            old, new = _node(node, old), _node(node, new)
            here, last = _climb(here, last)
        else:
            new = _node(new, node)
        here, last = here >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _half(size: int) -> int:
    """Largest power of two below `size`: where the tree of `size` leaves splits."""
    return 1 << ((size - 1).bit_length() - 1)


def _climb(here: int, last: int) -> tuple[int, int]:
    """On the right edge, skip the levels where a node has no sibling."""
    while here and not here & 1:
        here, last = here >> 1, last >> 1
    return here, last
