import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.bands import LARGEST, pack, read
from splitlearn.errors import WireError

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=20)
NUMBERS = st.one_of(
    st.just(0), st.integers(-3, 3), st.integers(-130, 130), st.integers(-LARGEST, LARGEST)
)


def written(q_BM: np.ndarray) -> bytes:
    near = np.where(np.abs(q_BM) > 127, -128, q_BM).astype(np.int8)
    mean = (np.abs(q_BM).sum(axis=1) / max(q_BM.shape[1], 1)).astype(np.float32)
    return pack(near, mean, exact=lambda b, m: q_BM[b, m].astype(np.int32))


def whole(data: bytes, *, bands: int, items: int) -> np.ndarray:
    banded = read(memoryview(data), bands=bands, items=items)
    out = banded.near_BM.astype(np.int64)
    out.reshape(-1)[banded.at] = banded.beside
    return out


@given(hnp.arrays(np.int64, SHAPES, elements=NUMBERS))
def test_numbers_come_back_as_they_went(q_BM: np.ndarray) -> None:
    bands, items = q_BM.shape
    assert np.array_equal(whole(written(q_BM), bands=bands, items=items), q_BM)


@pytest.mark.parametrize(
    ("size", "over"),
    # A byte takes a bit at least, and what stands beside is not modelled well.
    [(0.1, 2.0), (0.2, 1.35), (0.3, 1.15), (0.5, 1.1), (1.0, 1.1), (5.0, 1.1), (3_000.0, 1.7)],
)
def test_numbers_of_any_usual_size_come_back_and_take_little_more_than_their_entropy(
    size: float, over: float
) -> None:
    q_BM = np.rint(np.random.default_rng(0).laplace(0, size, (64, 2_000))).clip(-LARGEST, LARGEST)
    q_BM = q_BM.astype(np.int64)
    data = written(q_BM)
    assert np.array_equal(whole(data, bands=64, items=2_000), q_BM)
    share = np.unique(q_BM, return_counts=True)[1] / q_BM.size
    entropy_bytes = -(share * np.log2(share)).sum() * q_BM.size / 8
    assert len(data) < over * entropy_bytes + 200


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_no_numbers_take_only_a_head(shape: tuple[int, int]) -> None:
    data = written(np.zeros(shape, np.int64))
    assert len(data) == 8
    assert whole(data, bands=shape[0], items=shape[1]).shape == shape


def test_bands_of_zeros_take_next_to_nothing() -> None:
    assert len(written(np.zeros((1_000, 1_000), np.int64))) < 50


def test_the_same_numbers_give_the_same_bytes() -> None:
    q_BM = np.random.default_rng(0).integers(-200, 200, (9, 30))
    assert written(q_BM) == written(q_BM)


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def forged(levels: bytes, codes: bytes, escapes: bytes = b"") -> bytes:
    packed = [frame(piece) if piece else b"" for piece in (levels, escapes, codes)]
    return struct.pack("<II", len(packed[0]), len(packed[1])) + b"".join(packed)


def test_a_payload_put_together_by_hand_reads() -> None:
    # Level 10: four symbols a byte, -1 0 1 as 0 1 2; the last stands beside.
    data = forged(b"\x0a\x00", bytes([0 + 4 * 1 + 16 * 2 + 64 * 3]), struct.pack("<H", 7 * 2 + 1))
    assert whole(data, bands=2, items=4).tolist() == [[-1, 0, 1, -9], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no head"),
        (b"\x00" * 7, "no head"),
        (struct.pack("<II", 5, 5), "claims 10 bytes of 0"),
        (struct.pack("<II", 2**32 - 1, 2**32 - 1), "claims"),
        (forged(b"\x0a", b"\x55"), "claims 1 bytes where the agreed codec has 2"),
        (forged(b"\x0a\x00\x00", b"\x55"), "claims 3 bytes"),
        (forged(b"\x31\x00", b"\x55\x55\x55\x55"), "level 49"),
        (forged(b"\xff\x00", b"\x55\x55\x55\x55"), "level 255"),
        (forged(b"\x0a\x00", b"\x55\x55"), "claims 2 bytes where the agreed codec has 1"),
        (forged(b"\x0a\x00", b""), "not one whole zstd frame"),
        (forged(b"\x00\x00", b"\x55"), "where none belong"),
        (forged(b"\x0a\x00", b"\x55", b"\x00\x01"), "where none belong"),
        (forged(b"\x0a\x00", b"\xd5"), "not one whole zstd frame"),
        (forged(b"\x0a\x00", b"\xd5", b"\x02"), "claims 1 bytes where the agreed codec has 2"),
        (forged(b"\x0a\x00", b"\xd5", b"\xff\xff"), "beyond 32767"),
        (forged(b"\x0a\x00", b"\xd5", b"\xfc\xff"), "beyond 32767"),
        (forged(b"\x10\x00", bytes([216, 0])), "a byte that no numbers give"),
        (forged(b"\x10\x00", bytes([0, 36])), "a byte that no numbers give"),
    ],
)
def test_what_no_writer_writes_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        whole(data, bands=2, items=4)


@given(st.binary(max_size=120), st.integers(0, 5), st.integers(0, 5))
def test_junk_raises_our_error_or_nothing(junk: bytes, bands: int, items: int) -> None:
    good = written(np.arange(-7, 5).reshape(3, 4))
    for data in (junk, good[:8] + junk, good[: len(good) // 2] + junk):
        try:
            out = whole(data, bands=bands, items=items)
        except WireError:
            continue
        assert out.shape == (bands, items)
        assert np.abs(out).max(initial=0) <= LARGEST
