import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.rounding import rounded, whole

NUMBERS = st.floats(-300, 300, width=32)
LINES = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS
)


def plain(x_LI: torch.Tensor, *, step: float) -> np.ndarray:
    """The rule as it stands in the decision: to zero up to 0.6 steps, all others down by 0.1."""
    v = x_LI.double().numpy() / step
    return np.sign(v) * np.rint(np.maximum(np.abs(v) - 0.1, 0))


def test_numbers_up_to_six_tenths_of_a_step_become_zero_and_others_round_down_by_a_tenth() -> None:
    x = torch.tensor([0.0, 0.59, -0.59, 0.61, -0.61, 1.59, 1.61, 40.0, -200.0])
    assert whole(x * 3, step=3.0).tolist() == [0, 0, 0, 1, -1, 1, 2, 40, -200]


@given(LINES, st.sampled_from([0.013, 1.0, 77.0]))
def test_near_numbers_are_the_whole_ones_or_say_that_they_are_beyond(
    x: np.ndarray, step: float
) -> None:
    x_LI = torch.from_numpy(x)
    largest = float(x_LI.abs().max())
    numbers = rounded(x_LI, step=step, largest=largest)
    exact_LI = whole(x_LI, step=step)
    beyond_LI = exact_LI.abs() > 127
    assert torch.equal(numbers.near_LI.float(), exact_LI.masked_fill(beyond_LI, -128))


@pytest.mark.parametrize("shape", [(1, 1), (3, 50_000), (500, 400), (2_000, 70), (200_000, 1)])
@pytest.mark.parametrize("step", [0.01, 0.5])
def test_what_blocks_give_is_what_a_whole_pass_gives(shape: tuple[int, int], step: float) -> None:
    x_LI = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    numbers = rounded(x_LI, step=step, largest=float(x_LI.abs().max()))
    exact_LI = plain(x_LI, step=step)
    # A number on the border between two may fall either way in float32.
    assert np.mean(whole(x_LI, step=step).numpy() != exact_LI) < 1e-3
    assert numbers.line_L == pytest.approx(np.abs(exact_LI).mean(axis=1), rel=1e-3, abs=1e-6)
    assert numbers.item_I == pytest.approx(np.abs(exact_LI).mean(axis=0), rel=1e-3, abs=1e-6)
    lost = math.sqrt(np.square(x_LI.numpy() / step - exact_LI).mean())
    assert numbers.lost == pytest.approx(lost, rel=1e-3)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_no_numbers_lose_nothing(shape: tuple[int, int]) -> None:
    numbers = rounded(torch.zeros(shape), step=1.0, largest=0.0)
    assert numbers.near_LI.shape == shape
    assert (numbers.line_L.shape, numbers.item_I.shape) == ((shape[0],), (shape[1],))
    assert numbers.lost == 0.0


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 3e38])
def test_what_is_lost_is_told_for_numbers_whose_squares_are_not(size: float) -> None:
    x_LI = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    x_LI = x_LI / x_LI.abs().max()
    usual = rounded(x_LI, step=0.1, largest=1.0).lost
    assert rounded(x_LI * size, step=0.1 * size, largest=size).lost == pytest.approx(
        usual, rel=1e-3
    )
