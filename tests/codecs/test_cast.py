import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.base import Codec, to_part
from splitlearn.codecs.cast import BFloat16, Float16
from splitlearn.errors import WireError

# Rounding up may double the exponent of the very largest numbers: 2^127 and below stays finite.
REALS = st.floats(min_value=-(2.0**127), max_value=2.0**127, width=32)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=REALS)


def through(codec: Codec, x_ND: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


@given(ROWS)
def test_fp16_errs_by_2_to_the_minus_11_of_a_value_or_2_to_the_minus_40_of_the_largest(
    x: np.ndarray,
) -> None:
    x_ND = torch.from_numpy(x)
    y_ND = through(Float16(), x_ND)
    assert y_ND.dtype == torch.float32
    x64_ND, y64_ND = x_ND.double(), y_ND.double()
    largest = x64_ND.abs().max()
    # 2^-149 is the smallest float32: below it nothing can be represented.
    bound_ND = torch.maximum(x64_ND.abs() * 2**-11, (largest * 2**-38).clamp(min=2.0**-148))
    assert bool(((x64_ND - y64_ND).abs() <= bound_ND).all())


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e-7, 1.0, 65504.0, 1e9, 1e30])
def test_fp16_keeps_gradients_of_any_size(size: float) -> None:
    x_ND = torch.randn(16, 32, generator=torch.Generator().manual_seed(3)) * size
    x_ND, y_ND = x_ND.double(), through(Float16(), x_ND).double()
    assert float((x_ND - y_ND).norm() / x_ND.norm()) < 2**-11


def test_plain_float16_would_have_lost_them() -> None:
    x_ND = torch.randn(16, 32, generator=torch.Generator().manual_seed(3)) * 1e-8
    assert float((x_ND - x_ND.to(torch.float16).float()).norm() / x_ND.norm()) > 0.5


@given(ROWS)
def test_bf16_errs_by_2_to_the_minus_8_of_a_value(x: np.ndarray) -> None:
    x_ND = torch.from_numpy(x)
    y_ND = through(BFloat16(), x_ND)
    bound_ND = (x_ND.double().abs() * 2**-8).clamp(min=2.0**-133)
    assert bool(((x_ND.double() - y_ND.double()).abs() <= bound_ND).all())


@pytest.mark.parametrize("codec", [Float16(), BFloat16()])
def test_a_second_way_through_changes_nothing(codec: Codec) -> None:
    x_ND = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    once_ND = through(codec, x_ND)
    assert torch.equal(through(codec, once_ND), once_ND)


@pytest.mark.parametrize("codec", [Float16(), BFloat16()])
def test_zero_stays_zero_with_its_sign(codec: Codec) -> None:
    y_ND = through(codec, torch.tensor([[0.0, -0.0]]))
    assert torch.equal(torch.signbit(y_ND), torch.tensor([[False, True]]))
    assert torch.equal(y_ND, torch.zeros(1, 2))


@pytest.mark.parametrize("codec", [Float16(), BFloat16()])
def test_parts_are_those_the_layout_declares(codec: Codec) -> None:
    parts = codec.encode(torch.ones(3, 4, dtype=torch.float64))
    assert [(p.name, p.dtype, p.shape) for p in parts] == list(codec.layout(rows=3, width=4))


@pytest.mark.parametrize("shift", [-128, -127, 114, 127])
def test_fp16_refuses_a_shift_that_no_float32_message_has(shift: int) -> None:
    x, _ = Float16().encode(torch.ones(2, 2))
    forged = to_part("shift", torch.tensor([shift], dtype=torch.int8))
    with pytest.raises(WireError, match=f"shift {shift};"):
        Float16().decode((x, forged), rows=2, width=2)


@pytest.mark.parametrize("codec", [Float16(), BFloat16()])
def test_another_codecs_parts_are_refused(codec: Codec) -> None:
    with pytest.raises(WireError):
        codec.decode((to_part("x", torch.ones(2, 2)),), rows=2, width=2)
