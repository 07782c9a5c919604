import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.codecs.bands import LARGEST
from splitlearn.codecs.rounding import whole
from splitlearn.codecs.steps import LEAST_STEP, MOST_STEP, Found, found, losing, usable


def counted(amount: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    tried: list[float] = []

    def once_more(step: float) -> float:
        tried.append(step)
        return amount(step)

    return once_more, tried


@pytest.mark.parametrize("power", [1.0, 0.4, -1.0, -3.0])
def test_a_straight_line_is_met_at_the_third_try(power: float) -> None:
    amount, tried = counted(lambda step: 7.0 * step**power)
    first = Found(1.0, math.copysign(1.0, power))
    step, slope = found(amount, wanted=40.0, first=first, bounds=(1e-6, 1e6), close=1e-6, tries=20)
    assert 7.0 * step**power == pytest.approx(40.0)
    assert len(tried) <= 3
    assert slope == pytest.approx(power, rel=1e-3)


@given(st.floats(1e-4, 1e4), st.floats(1e-4, 1e4), st.booleans())
def test_steps_stay_within_bounds_and_give_what_is_wanted_or_what_is_next_to_it(
    wanted: float, first: float, rises: bool
) -> None:
    def bent(step: float) -> float:
        much = step**2 if step < 1 else step**0.25
        return much if rises else 1 / much

    amount, tried = counted(bent)
    bounds = (0.02, 500.0)
    start = Found(first, 1.0 if rises else -1.0)
    step = found(amount, wanted=wanted, first=start, bounds=bounds, close=0.01, tries=20).step
    assert all(bounds[0] <= each <= bounds[1] for each in tried)
    least, most = sorted((bent(bounds[0]), bent(bounds[1])))
    assert bent(step) == pytest.approx(min(max(wanted, least), most), rel=0.011)


def test_an_amount_of_nothing_is_no_reason_to_stop() -> None:
    step = found(
        lambda step: max(step - 1.0, 0.0),
        wanted=0.5,
        first=Found(0.1, 1.0),
        bounds=(0.01, 100.0),
        close=0.01,
        tries=40,
    ).step
    assert step == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("share", [0.003, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_the_step_loses_what_it_may(share: float, size: float) -> None:
    x_S = torch.randn(9_000, generator=torch.Generator().manual_seed(0)).double() * size
    allowed = share * float(x_S.norm()) / math.sqrt(len(x_S))
    step = losing(allowed, x_S.float(), largest=float(x_S.abs().max()))
    lost_S = whole(x_S.float(), step=step).double() * step - x_S
    assert float(lost_S.norm()) / math.sqrt(len(x_S)) == pytest.approx(allowed, rel=0.006)


def test_what_no_step_loses_gives_the_finest_or_all_zeros() -> None:
    x_S = torch.randn(100, generator=torch.Generator().manual_seed(0))
    largest = float(x_S.abs().max())
    assert losing(0.0, x_S, largest=largest) == pytest.approx(usable(0.0, largest=largest))
    assert not whole(x_S, step=losing(9.0 * largest, x_S, largest=largest)).any()


@given(st.floats(2.0**-110, 2.0**127), st.floats(0, 2.0**127))
def test_a_usable_step_keeps_all_numbers_within_two_bytes(largest: float, step: float) -> None:
    step = usable(step, largest=largest)
    assert LEAST_STEP <= step <= MOST_STEP
    assert largest / step <= LARGEST
