import math
import struct
import tracemalloc

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.transform import Transform
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES
from splitlearn.wire.tensors import Part

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FINITE)


def by_error(error: float) -> Transform:
    return Transform(f"transform-e{error}", error=error)


def by_size(per_row: float) -> Transform:
    return Transform(f"transform-b{per_row}", per_row=per_row)


def through(codec: Transform, x_ND: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


def lost(x_ND: torch.Tensor, y_ND: torch.Tensor) -> float:
    x_ND = x_ND.double()
    return float((x_ND - y_ND.double()).norm() / x_ND.norm())


def part(data: bytes) -> Part:
    return Part(name="bands", dtype="U8", shape=(len(data),), data=data)


def activations(rows: int = 512, width: int = 96, seed: int = 0) -> torch.Tensor:
    """Columns of different spread."""
    generator = torch.Generator().manual_seed(seed)
    spread_D = torch.logspace(0.5, -1, width)
    return torch.randn(rows, width, generator=generator) * spread_D


def gradients(rows: int = 512, width: int = 96, seed: int = 0) -> torch.Tensor:
    """Rows of different spread, all small."""
    return activations(width, rows, seed).T[torch.randperm(rows)] * 1e-7


@pytest.mark.parametrize("make", [activations, gradients])
@pytest.mark.parametrize("error", [0.003, 0.02, 0.13, 0.4, 0.8])
def test_the_error_is_about_the_one_asked_for(make: type, error: float) -> None:
    x_ND = make()
    assert lost(x_ND, through(by_error(error), x_ND)) == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize("make", [activations, gradients])
@pytest.mark.parametrize("per_row", [1.5, 8.0, 40.0])
def test_the_bytes_are_at_most_those_asked_for_and_not_far_below(
    make: type, per_row: float
) -> None:
    x_ND = make()
    (data,) = by_size(per_row).encode(x_ND)
    assert 0.85 * per_row < len(data.data) / 512 <= per_row


def test_more_bytes_than_two_a_number_are_not_taken() -> None:
    x_ND = activations()
    (data,) = by_size(60_000.0).encode(x_ND)
    assert len(data.data) < 3 * x_ND.numel()
    assert lost(x_ND, through(by_size(60_000.0), x_ND)) < 1e-3


def test_a_size_that_nothing_fits_gives_zeros_and_says_so_by_its_length() -> None:
    x_ND = activations()
    assert not through(by_size(0.01), x_ND).any()


def test_it_takes_a_third_less_than_int8_at_an_eighth_of_the_error_of_int4() -> None:
    x_ND = activations()
    (data,) = by_error(0.02).encode(x_ND)
    assert len(data.data) < 0.66 * x_ND.numel()


def test_gradients_are_banded_by_row_and_activations_by_column() -> None:
    assert by_error(0.1).encode(activations())[0].data[4] == 0
    assert by_error(0.1).encode(gradients())[0].data[4] == 1


@given(ROWS)
def test_anything_finite_stays_finite_and_within_a_step_of_what_it_was(x: np.ndarray) -> None:
    x_ND = torch.from_numpy(x)
    codec = by_error(0.1)
    parts = codec.encode(x_ND)
    y_ND = codec.decode(parts, rows=x_ND.shape[0], width=x_ND.shape[1])
    step = struct.unpack("<f", parts[0].data[:4])[0]
    assert bool(torch.isfinite(y_ND).all())
    if float(x_ND.abs().max()) >= 2.0**-110:
        largest = float(x_ND.abs().max())
        bound = 0.61 * step + 1e-6 * largest
        assert float((x_ND.double() - y_ND.double()).abs().max()) <= bound


@pytest.mark.parametrize("codec", [by_error(0.1), by_size(10.0)])
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-35])
def test_zeros_and_denormals_become_zero(codec: Transform, size: float) -> None:
    assert not through(codec, torch.full((5, 7), size)).any()


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e20, 3e38])
def test_rows_of_any_size_keep_their_error(size: float) -> None:
    x_ND = activations()
    x_ND = x_ND / x_ND.abs().max() * size
    assert lost(x_ND, through(by_error(0.1), x_ND)) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 300), (300, 1)])
@pytest.mark.parametrize("codec", [by_error(0.1), by_size(10.0)])
def test_narrow_and_empty_shapes_pass(codec: Transform, shape: tuple[int, int]) -> None:
    x_ND = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    y_ND = through(codec, x_ND)
    assert (y_ND.shape, y_ND.dtype) == (shape, torch.float32)


def test_a_transposed_tensor_of_doubles_is_read_as_rows() -> None:
    x_ND = activations().double()
    flipped_ND = x_ND.T.contiguous().T
    assert by_error(0.1).encode(flipped_ND) == by_error(0.1).encode(x_ND.float())


def test_one_value_a_million_times_larger_does_not_stop_it() -> None:
    x_ND = activations()
    x_ND[3, 4] = 1e6
    y_ND = through(by_error(0.001), x_ND)
    assert y_ND[3, 4] == pytest.approx(1e6, rel=2e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("codec", [by_error(0.1), by_size(10.0)])
def test_what_is_not_a_number_gives_nothing_that_a_reader_takes(
    codec: Transform, value: float
) -> None:
    x_ND = activations(20, 8)
    x_ND[3, 4] = value
    with pytest.raises(WireError, match="step nan"):
        through(codec, x_ND)


@pytest.mark.parametrize("shape", [(512, 96), (511, 95), (1, 97), (97, 1), (4, 3), (1_030, 258)])
@pytest.mark.parametrize("make", [activations, gradients])
def test_each_number_comes_back_to_its_own_place(make: type, shape: tuple[int, int]) -> None:
    x_ND = make(*shape)
    codec = by_error(0.001)
    step = struct.unpack("<f", codec.encode(x_ND)[0].data[:4])[0]
    assert float((through(codec, x_ND) - x_ND).abs().max()) <= 0.61 * step


GOOD = by_error(0.1).encode(activations(6, 8))[0].data


def head(step: float, axis: int) -> bytes:
    return struct.pack("<fB", step, axis) + bytes(GOOD[5:])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no head"),
        (bytes(4), "no head"),
        (head(math.nan, 0), "step nan"),
        (head(math.inf, 0), "step inf"),
        (head(0.0, 0), "step 0.0"),
        (head(-1.0, 0), "step -1.0"),
        (head(1e-40, 0), "step"),
        (head(2e38, 0), "step"),
        (head(1.0, 2), "banding 2"),
        (head(1.0, 255), "banding 255"),
        (GOOD[:-1], "not one whole zstd frame"),
        (bytes(GOOD) + b"\x00", "not one whole zstd frame"),
    ],
)
def test_a_forged_payload_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        by_error(0.1).decode((part(data),), rows=6, width=8)


@given(st.binary(max_size=100), st.sampled_from([0, 3, 5, 9, 13, 30]))
def test_junk_raises_our_error_or_nothing(junk: bytes, kept: int) -> None:
    try:
        y_ND = by_error(0.1).decode((part(bytes(GOOD[:kept]) + junk),), rows=6, width=8)
    except WireError:
        return
    assert bool(torch.isfinite(y_ND).all())


def test_rows_or_width_other_than_agreed_are_refused() -> None:
    for rows, width in ((7, 8), (6, 9), (8, 6)):
        with pytest.raises(WireError):
            by_error(0.1).decode((part(GOOD),), rows=rows, width=width)


def test_more_numbers_than_a_frame_has_bytes_are_refused_both_ways() -> None:
    rows = MAX_FRAME_BYTES // 8 + 1
    with pytest.raises(WireError, match="over the"):
        by_error(0.1).decode((part(GOOD),), rows=rows, width=8)
    with pytest.raises(WireError, match="micro_batches"):
        by_error(0.1).encode(torch.zeros(1, 1).expand(rows, 8))


def test_a_bomb_is_refused_before_anything_is_allocated() -> None:
    levels = zstandard.ZstdCompressor().compress(b"\x0a" * 8)
    codes = zstandard.ZstdCompressor().compress(bytes(256 * 2**20))
    data = struct.pack("<fBII", 1.0, 0, len(levels), 0) + levels + codes
    tracemalloc.start()
    with pytest.raises(WireError, match="claims"):
        by_error(0.1).decode((part(data),), rows=6, width=8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**18
