import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.base import to_part, to_tensor
from splitlearn.codecs.packed import Packed
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES

FINITE = st.floats(min_value=-(2.0**115), max_value=2.0**115, width=32)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FINITE)
ALL = [
    Packed(f"{'hadamard-' * rotated}int{bits}-g{group}", bits=bits, group=group, rotated=rotated)
    for bits in (8, 4, 2)
    for group in (0, 4)
    for rotated in (False, True)
]
PLAIN = [codec for codec in ALL if "hadamard" not in codec.name]


def name(codec: Packed) -> str:
    return codec.name


def through(codec: Packed, x_ND: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


@pytest.mark.parametrize("bits", [8, 4])
@given(ROWS)
def test_a_value_errs_by_about_half_a_step_of_its_group(bits: int, x: np.ndarray) -> None:
    x_ND = torch.from_numpy(x)
    y_ND = through(Packed("q", bits=bits, group=4), x_ND)
    steps = {8: 127, 4: 7}[bits]
    for first in range(0, x_ND.shape[1], 4):
        old, new = x_ND[:, first : first + 4].double(), y_ND[:, first : first + 4].double()
        step_N1 = (old.abs().amax(dim=1, keepdim=True) / steps).clamp(min=2.0**-126)
        # A scale has 8 bits, so the largest code may be off by the 2^-9th part of its `steps` steps.
        assert bool(((old - new).abs() <= step_N1 * (0.51 + steps * 2.0**-8)).all())


@pytest.mark.parametrize("codec", ALL, ids=name)
@given(ROWS)
def test_anything_finite_stays_finite(codec: Packed, x: np.ndarray) -> None:
    y_ND = through(codec, torch.from_numpy(x))
    assert y_ND.dtype == torch.float32
    assert bool(torch.isfinite(y_ND).all())


@pytest.mark.parametrize("codec", ALL, ids=name)
def test_the_largest_numbers_there_are_stay_finite(codec: Packed) -> None:
    x_ND = torch.tensor([[3.4e38, -3.4e38] * 64, [1.0] * 128])
    assert bool(torch.isfinite(through(codec, x_ND)).all())


@pytest.mark.parametrize("codec", ALL, ids=name)
def test_zeros_stay_zero_beside_other_rows(codec: Packed) -> None:
    x_ND = torch.tensor([[0.0] * 10, [1.0, -2.0] * 5])
    assert not through(codec, x_ND)[0].any()


@pytest.mark.parametrize(
    ("bits", "group", "rotated", "error"),
    [(8, 64, False, 0.008), (4, 0, False, 0.15), (4, 64, False, 0.11), (4, 0, True, 0.15)],
)
def test_real_sized_rows_lose_what_theory_says(
    bits: int, group: int, rotated: bool, error: float
) -> None:
    x_ND = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    y_ND = through(Packed("q", bits=bits, group=group, rotated=rotated), x_ND)
    assert 0.6 * error < float((x_ND - y_ND).norm() / x_ND.norm()) < error


def test_two_bits_lose_what_the_best_four_levels_for_a_bell_curve_lose() -> None:
    x_ND = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    y_ND = through(Packed("int2", bits=2), x_ND)
    # Max, "Quantizing for minimum distortion", 1960: mean square error 0.1188 with even levels.
    assert float((x_ND - y_ND).norm() / x_ND.norm()) == pytest.approx(0.1188**0.5, rel=0.02)


def test_a_rotation_spreads_an_outlier_that_would_coarsen_its_row() -> None:
    x_ND = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    x_ND[:, 5] *= 20

    def rest(codec: Packed) -> float:
        return float((x_ND - through(codec, x_ND)).norm() / x_ND.norm())

    assert rest(Packed("q", bits=4, rotated=True)) < 0.75 * rest(Packed("q", bits=4))


@pytest.mark.parametrize("codec", ALL, ids=name)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (2, 129)])
def test_parts_are_those_the_layout_declares(codec: Packed, shape: tuple[int, int]) -> None:
    x_ND = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    parts = codec.encode(x_ND)
    layout = codec.layout(rows=shape[0], width=shape[1])
    assert [(p.name, p.dtype, p.shape) for p in parts] == list(layout)
    assert through(codec, x_ND).shape == shape


@pytest.mark.parametrize("codec", ALL, ids=name)
def test_a_transposed_tensor_is_read_as_rows(codec: Packed) -> None:
    x_ND = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    assert codec.encode(x_ND.T.contiguous().T) == codec.encode(x_ND)


def test_values_lie_in_a_byte_from_its_lowest_bits_up() -> None:
    codes, scale = Packed("int4", bits=4).encode(torch.tensor([[7.0, -7.0, 1.0]]))
    assert bytes(codes.data) == bytes([7 + 16 * 9, 1])
    assert to_tensor(scale).tolist() == [[1.0]]


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf"), 1e-40, 3e38])
@pytest.mark.parametrize("codec", ALL, ids=name)
def test_a_forged_scale_is_refused(codec: Packed, scale: float) -> None:
    codes, scales = codec.encode(torch.ones(2, 2))
    forged = torch.full(scales.shape, scale).to(torch.bfloat16)
    with pytest.raises(WireError, match="scale outside"):
        codec.decode((codes, to_part("scale", forged)), rows=2, width=2)


def test_codes_that_no_value_gives_are_refused() -> None:
    for bits, width, codes in ((8, 2, [128, 0]), (4, 2, [0x08]), (4, 1, [0x10]), (2, 3, [0x40])):
        codec = Packed("q", bits=bits)
        _, scale = codec.encode(torch.ones(1, width))
        forged = to_part("x", torch.tensor([codes], dtype=torch.uint8))
        with pytest.raises(WireError, match=r"no value gives|behind the end"):
            codec.decode((forged, scale), rows=1, width=width)


@pytest.mark.parametrize("codec", PLAIN, ids=name)
def test_rows_or_width_other_than_agreed_are_refused(codec: Packed) -> None:
    parts = codec.encode(torch.ones(3, 12))
    for rows, width in ((4, 12), (3, 17), (MAX_FRAME_BYTES, 2)):
        with pytest.raises(WireError):
            codec.decode(parts, rows=rows, width=width)
