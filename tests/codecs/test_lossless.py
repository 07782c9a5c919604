import tracemalloc

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.base import Codec, Identity
from splitlearn.codecs.cast import BFloat16, Float16
from splitlearn.codecs.lossless import Zstd
from splitlearn.codecs.quantise import Int8
from splitlearn.errors import ManifestError, WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES
from splitlearn.wire.tensors import Part

FINITE = st.floats(min_value=-(2.0**120), max_value=2.0**120, width=32)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FINITE)
INNER = [Identity(), Float16(), BFloat16(), Int8()]


def through(codec: Codec, x_ND: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


def part(data: bytes) -> Part:
    return Part(name="zstd", dtype="U8", shape=(len(data),), data=data)


@pytest.mark.parametrize("inner", INNER, ids=lambda codec: codec.name)
@given(ROWS)
def test_zstd_adds_no_error_to_the_codec_before_it(inner: Codec, x: np.ndarray) -> None:
    x_ND = torch.from_numpy(x)
    y_ND = through(Zstd(inner), x_ND)
    assert torch.equal(y_ND.view(torch.int32), through(inner, x_ND).view(torch.int32))


def test_rows_like_an_encoders_become_smaller() -> None:
    x_ND = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    x_ND[:, 0] *= 4
    (packed,) = Zstd(Int8()).encode(x_ND)
    assert len(packed.data) < 0.95 * x_ND.numel()


def test_the_same_rows_give_the_same_bytes() -> None:
    x_ND = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    assert Zstd(Int8()).encode(x_ND) == Zstd(Int8()).encode(x_ND)


def bomb(size: int) -> bytes:
    """A legal frame of a few kilobytes that unpacks to `size` zeros and says so."""
    packer = zstandard.ZstdCompressor(level=19).compressobj(size=size)
    zeros = bytes(2**20)
    packed = b"".join(packer.compress(zeros) for _ in range(size // len(zeros)))
    return packed + packer.flush()


@pytest.mark.parametrize("size", [2**20, 256 * 2**20])
def test_a_bomb_is_refused_before_anything_is_allocated(size: int) -> None:
    packed = part(bomb(size))
    tracemalloc.start()
    with pytest.raises(WireError, match=f"claims {size} bytes"):
        Zstd(Int8()).decode((packed,), rows=4, width=8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**18


def test_a_bomb_that_understates_its_size_is_refused() -> None:
    honest = zstandard.ZstdCompressor().compress(bytes(100_000))
    params = zstandard.get_frame_parameters(honest)
    assert params.content_size == 100_000
    # Single segment, four-byte size field right after magic number and descriptor.
    forged = honest[:5] + (48).to_bytes(4, "little") + honest[9:]
    assert zstandard.get_frame_parameters(forged).content_size == 48
    with pytest.raises(WireError, match="not one whole zstd frame"):
        Zstd(Int8()).decode((part(forged),), rows=4, width=8)


def test_a_frame_that_holds_less_than_it_claims_is_refused() -> None:
    honest = zstandard.ZstdCompressor().compress(bytes(100_000))
    forged = honest[:5] + (100_004).to_bytes(4, "little") + honest[9:]
    with pytest.raises(WireError):
        Zstd(Identity()).decode((part(forged),), rows=1, width=25_001)


def test_a_message_larger_than_a_frame_is_refused_whatever_its_packed_size() -> None:
    rows = MAX_FRAME_BYTES // 8 + 1
    with pytest.raises(WireError, match="would unpack to"):
        Zstd(Int8()).decode((part(bomb(2**20)),), rows=rows, width=8)


def test_our_own_message_larger_than_the_peer_unpacks_names_the_remedy() -> None:
    x_ND = torch.zeros(1).expand(MAX_FRAME_BYTES // 1024 + 1, 256)
    with pytest.raises(ManifestError, match="micro_batches"):
        Zstd(Identity()).encode(x_ND)


def dictionary_frame() -> bytes:
    samples = [bytes([i % 7, i % 11, i % 13] * 50) for i in range(200)]
    words = zstandard.train_dictionary(2048, samples)
    return zstandard.ZstdCompressor(dict_data=words).compress(bytes(48))


GOOD = zstandard.ZstdCompressor().compress(bytes(range(48)))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x00" * 9,
        GOOD[:-1],
        GOOD + b"\x00",
        GOOD + GOOD,
        b"\x50\x2a\x4d\x18\x30\x00\x00\x00" + bytes(48),
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(48)),
        dictionary_frame(),
    ],
    ids=["empty", "zeros", "cut", "trailing", "two", "skippable", "sizeless", "dictionary"],
)
def test_anything_but_one_plain_frame_is_refused(packed: bytes) -> None:
    with pytest.raises(WireError):
        Zstd(Int8()).decode((part(packed),), rows=4, width=8)


@given(st.binary(max_size=200))
@example(GOOD)
def test_junk_raises_our_error_or_nothing(junk: bytes) -> None:
    for packed in (junk, GOOD[:4] + junk, GOOD[: len(GOOD) // 2] + junk):
        try:
            y_ND = Zstd(Int8()).decode((part(packed),), rows=4, width=8)
        except WireError:
            continue
        assert y_ND.shape == (4, 8)


def test_layout_says_that_the_length_depends_on_the_content() -> None:
    assert Zstd(Int8()).layout(rows=4, width=8) == (("zstd", "U8", None),)
    assert Zstd(Int8()).name == "int8+zstd"
