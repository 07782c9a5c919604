import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.base import to_part
from splitlearn.codecs.quantise import Int8
from splitlearn.errors import WireError

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FINITE)


def through(x_ND: torch.Tensor) -> torch.Tensor:
    return Int8().decode(Int8().encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


@given(ROWS)
def test_a_value_errs_by_half_its_rows_scale_at_most_and_stays_finite(x: np.ndarray) -> None:
    x_ND = torch.from_numpy(x)
    y_ND = through(x_ND)
    scale_N = (x_ND.double().abs().amax(dim=1) / 127).clamp(min=2.0**-126)
    # A millionth for the rounding of scale and product in float32.
    bound_N1 = (scale_N * (0.5 + 127e-6)).unsqueeze(1)
    assert y_ND.dtype == torch.float32
    assert bool(torch.isfinite(y_ND).all())
    assert bool(((x_ND.double() - y_ND.double()).abs() <= bound_N1).all())


def test_real_sized_rows_lose_about_one_percent() -> None:
    x_ND = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    assert 0.003 < float((x_ND - through(x_ND)).norm() / x_ND.norm()) < 0.012


def test_one_rows_outlier_does_not_coarsen_another_row() -> None:
    x_ND = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    alone_ND = through(x_ND[1:])
    x_ND[0, 0] = 1e6
    assert torch.equal(through(x_ND)[1:], alone_ND)


def test_a_row_of_zeros_stays_zero_beside_other_rows() -> None:
    x_ND = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    assert torch.equal(through(x_ND)[0], torch.zeros(2))


def test_codes_use_the_whole_symmetric_range_and_never_minus_128() -> None:
    x_ND = torch.tensor([[-7.0, 7.0, 0.0], [3.0, -1.0, 3.4028234663852886e38]])
    codes, _ = Int8().encode(x_ND)
    assert np.frombuffer(codes.data, np.int8).tolist() == [-127, 127, 0, 0, 0, 127]


def test_parts_are_those_the_layout_declares() -> None:
    parts = Int8().encode(torch.ones(3, 4))
    assert [(p.name, p.dtype, p.shape) for p in parts] == list(Int8().layout(rows=3, width=4))
    assert sum(len(part.data) for part in parts) == 3 * 4 + 3 * 4


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-40, 3e36])
def test_a_forged_scale_is_refused(scale: float) -> None:
    codes, _ = Int8().encode(torch.ones(2, 2))
    forged = to_part("scale", torch.tensor([1.0, scale]))
    with pytest.raises(WireError, match="scale outside"):
        Int8().decode((codes, forged), rows=2, width=2)


def test_scales_of_other_rows_are_refused() -> None:
    with pytest.raises(WireError):
        Int8().decode(Int8().encode(torch.ones(2, 2)), rows=3, width=2)
