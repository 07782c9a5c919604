"""Small whole numbers, most of them near zero, as few bytes: banded by size, packed, entropy coded.

A band is a run of numbers that resemble one another: one column of all rows, or one row. Each has a level,
the size of its typical number in half octaves, written as one byte. Bands of one level lie together, and
the smaller their numbers the more share a byte, since Zstandard's entropy stage spends at least one bit
a byte. What is too large for its place is written beside. Lengths follow from the levels, so a reader
knows what a frame must hold before it unpacks it.
"""

# B bands, M numbers in each

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray

from splitlearn.codecs.lossless import unpack
from splitlearn.errors import WireError

__all__ = ["LARGEST", "Banded", "pack", "read"]

# A number of any band: two bytes hold it.
LARGEST = 32_767


class Banded(NamedTuple):
    """near_BM: whole numbers; at: flat places in it where `beside` holds, in the same order."""

    near_BM: NDArray[np.int8]
    at: NDArray[np.intp]
    beside: NDArray[np.int32]


def pack(
    near_BM: NDArray[np.int8],
    mean_B: NDArray[np.float32],
    *,
    exact: Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.int32]],
) -> bytes:
    """Whole numbers up to LARGEST, those beyond 127 as -128.

    exact: the numbers in these bands at these places, asked for the few that are beyond 127. mean_B: of
    the numbers' sizes, zero only where all are.
    """
    items = near_BM.shape[1]
    levels_B = _levels(mean_B) if near_BM.size else np.zeros(0, np.uint8)
    order_B = np.argsort(levels_B, kind="stable")
    runs = list(_runs(levels_B[order_B]))
    codes = np.empty(sum(_bytes(run, items) for run in runs), np.uint8)
    beside: list[NDArray[np.uint16]] = []
    end = 0
    for run in runs:
        chosen_C = order_B[run.bands]
        symbols = _symbols(near_BM[chosen_C], run.kind)
        rows, columns = np.divmod(_escaped(symbols, run.kind), items)
        numbers = near_BM[chosen_C[rows], columns].astype(np.int32)
        far = np.flatnonzero(numbers == -128)
        if len(far):
            numbers[far] = exact(chosen_C[rows[far]], columns[far])
        # How far beyond its place, and the sign in the lowest bit: mostly 0 and 1.
        beyond = (np.abs(numbers) - run.kind.base // 2) << 1
        beside.append((beyond | (numbers < 0)).astype("<u2"))
        start, end = end, end + _bytes(run, items)
        _join(symbols, run.kind, out=codes[start:end])
    levels = _squeeze(levels_B)
    large = np.concatenate(beside) if beside else np.zeros(0, np.uint16)
    escapes = _squeeze(np.ascontiguousarray(large.view(np.uint8).reshape(-1, 2).T))
    return b"".join((_HEAD.pack(len(levels), len(escapes)), levels, escapes, _squeeze(codes)))


def read(data: memoryview, *, bands: int, items: int) -> Banded:
    """What `pack` was given. WireError for anything that it does not write.

    The caller has bounded bands x items; nothing is allocated from what `data` claims.
    """
    levels, escapes, codes = _pieces(data)
    levels_B = np.frombuffer(_loosen(levels, size=bands if items else 0), np.uint8)
    if levels_B.max(initial=0) >= _LEVELS:
        raise WireError(f"the peer's banded payload has level {levels_B.max()}")
    order_B = np.argsort(levels_B, kind="stable")
    runs = list(_runs(levels_B[order_B]))
    sizes = [_bytes(run, items) for run in runs]
    packed = np.frombuffer(_loosen(codes, size=sum(sizes)), np.uint8)
    near_BM = np.zeros((bands, items), np.int8)
    holes, place = [np.zeros(0, np.intp)], [np.zeros(0, np.int32)]
    for run, end, size in zip(runs, np.cumsum(sizes), sizes, strict=True):
        symbols = _parted(packed[end - size : end], run, items)
        chosen_C = order_B[run.bands]
        rows, columns = np.divmod(_escaped(symbols, run.kind), items)
        holes.append(chosen_C[rows] * items + columns)
        place.append(np.full(len(rows), run.kind.base // 2, np.int32))
        symbols -= np.uint8(run.kind.base // 2 - 1)
        near_BM[chosen_C] = symbols.view(np.int8).reshape(-1, items)
    at, places = np.concatenate(holes), np.concatenate(place)
    large = np.frombuffer(_loosen(escapes, size=2 * len(at)), np.uint8).reshape(2, len(at))
    beyond = np.ascontiguousarray(large.T).view("<u2").reshape(-1)
    beside = (beyond >> 1).astype(np.int32) + places
    if beside.max(initial=0) > LARGEST:
        raise WireError(f"the peer's banded payload has a number beyond {LARGEST}")
    np.negative(beside, out=beside, where=(beyond & 1).astype(np.bool_))
    return Banded(near_BM, at, beside)


class _Kind(NamedTuple):
    """`together` symbols share a byte: base ** together <= 256. The last one stands for: see beside."""

    base: int
    together: int


class _Run(NamedTuple):
    """Bands, in the order of their levels, that are written alike."""

    kind: _Kind
    bands: slice
    held: int


# Frames of levels and of large numbers; the packed numbers take the rest.
_HEAD = struct.Struct("<II")

# First level beyond a kind's. Level l stands for a mean size of 2 ** ((l - 17) / 2): level 17 is 1.
# Chosen by total size on activations and gradients of a real encoder, fine steps and coarse ones.
_KINDS = (
    (8, _Kind(2, 8)),
    (14, _Kind(4, 4)),
    (17, _Kind(6, 3)),
    (21, _Kind(16, 2)),
    (49, _Kind(256, 1)),
)
_LEVEL_OF_ONE = 17
_LEVELS = 49

# Entropy coding only: longer matches than 7 bytes hardly occur and nothing is lost by the fastest way of
# looking for them. Blocks of 16 KiB have a table of their own each, as neighbouring bands are alike.
_CODER = zstandard.ZstdCompressionParameters(
    compression_level=1,
    strategy=zstandard.STRATEGY_FAST,
    window_log=14,
    hash_log=10,
    chain_log=6,
    search_log=1,
    min_match=7,
)


def _pieces(data: memoryview) -> tuple[memoryview, memoryview, memoryview]:
    if len(data) < _HEAD.size:
        raise WireError(f"the peer's banded payload has {len(data)} bytes and no head")
    levels, escapes = _HEAD.unpack(data[: _HEAD.size])
    data = data[_HEAD.size :]
    if levels + escapes > len(data):
        raise WireError(f"the peer's banded payload claims {levels + escapes} bytes of {len(data)}")
    return data[:levels], data[levels : levels + escapes], data[levels + escapes :]


def _levels(mean_B: NDArray[np.float32]) -> NDArray[np.uint8]:
    level_B = np.rint(2 * np.log2(np.maximum(mean_B, 2.0**-40)) + _LEVEL_OF_ONE)
    level_B = np.clip(level_B, 1, _LEVELS - 1)
    return np.where(mean_B > 0, level_B, 0).astype(np.uint8)


def _runs(sorted_levels_B: NDArray[np.uint8]) -> Iterator[_Run]:
    """Level 0 has no bytes: all its numbers are zero."""
    first = int(np.searchsorted(sorted_levels_B, 1))
    for beyond, kind in _KINDS:
        last = int(np.searchsorted(sorted_levels_B, beyond))
        if last > first:
            yield _Run(kind, slice(first, last), last - first)
        first = last


def _symbols(near_CM: NDArray[np.int8], kind: _Kind) -> NDArray[np.uint8]:
    """0 to base - 2 for -(base / 2 - 1) to base / 2 - 1, and base - 1 for all others. In their place."""
    symbols = near_CM.reshape(-1).view(np.uint8)
    symbols += np.uint8(kind.base // 2 - 1)
    # numpy takes fifteen times as long for the lesser of an array and one number.
    torch.from_numpy(symbols).clamp_max_(kind.base - 1)
    return symbols


def _escaped(symbols: NDArray[np.uint8], kind: _Kind) -> NDArray[np.intp]:
    """Where numbers stand beside."""
    return np.flatnonzero(symbols == kind.base - 1)


def _join(symbols: NDArray[np.uint8], kind: _Kind, *, out: NDArray[np.uint8]) -> None:
    """Numbers far apart share a byte, so that all sums are over whole runs of memory."""
    short = kind.together * len(out) - len(symbols)
    if short:
        symbols = np.concatenate((symbols, np.zeros(short, np.uint8)))
    planes = symbols.reshape(kind.together, len(out))
    out[:] = planes[-1]
    for plane in planes[-2::-1]:
        out *= np.uint8(kind.base)
        out += plane


def _parted(joined: NDArray[np.uint8], run: _Run, items: int) -> NDArray[np.uint8]:
    base, together = run.kind
    if together == 1:
        return joined.copy()
    symbols = np.empty(together * len(joined), np.uint8)
    planes = symbols.reshape(together, len(joined))
    rest = joined
    for plane in planes[:-1]:
        quotient = rest // np.uint8(base)
        np.subtract(rest, quotient * np.uint8(base), out=plane)
        rest = quotient
    planes[-1] = rest
    numbers = run.held * items
    if rest.max(initial=0) >= base or symbols[numbers:].any():
        raise WireError("the peer's banded payload has a byte that no numbers give")
    written: NDArray[np.uint8] = symbols[:numbers]
    return written


def _bytes(run: _Run, items: int) -> int:
    return -(-run.held * items // run.kind.together)


def _squeeze(data: NDArray[np.uint8]) -> bytes:
    """One Zstandard frame; nothing for nothing."""
    if not data.size:
        return b""
    return zstandard.ZstdCompressor(compression_params=_CODER).compress(data.reshape(-1).data)


def _loosen(packed: memoryview, *, size: int) -> bytes:
    if size:
        return unpack(packed, size=size)
    if packed:
        raise WireError(f"the peer's banded payload has {len(packed)} bytes where none belong")
    return b""
