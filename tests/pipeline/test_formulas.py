"""The closed forms: known values, each other, and the optimum against trying every number."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pipeline import formulas

seconds = st.floats(1e-4, 10)
stages, pieces = st.integers(2, 6), st.integers(1, 50)


@pytest.mark.parametrize(
    ("p", "m", "share"), [(1, 5, 0.0), (2, 1, 0.5), (4, 4, 3 / 7), (4, 32, 3 / 35)]
)
def test_the_bubble_of_free_transfers(p: int, m: int, share: float) -> None:
    assert formulas.bubble(p, m) == pytest.approx(share)


@given(p=st.integers(2, 3), m=pieces, c=seconds, t=seconds)
def test_a_blocking_chain_of_two_or_three_stages_has_its_known_bubble(
    p: int, m: int, c: float, t: float
) -> None:
    lost = (p - 1) * (c + 2 * m * t)
    assert formulas.blocking_bubble(p, m, compute_s=c, transfer_s=t) == pytest.approx(
        lost / (m * c + lost)
    )


@given(m=pieces, c=seconds, t=seconds)
def test_longer_blocking_chains_lose_less_than_that(m: int, c: float, t: float) -> None:
    true_s = formulas.blocking_s(5, m, compute_s=c, transfer_s=t)
    assert true_s == pytest.approx((m + 4) * c + 2 * (2 * m + 2) * t)
    assert true_s <= m * c + 4 * (c + 2 * m * t) + 1e-9


def test_one_stage_sends_nothing() -> None:
    assert formulas.blocking_s(1, 3, compute_s=2.0, transfer_s=9.0) == 6.0


@given(p=stages, m=pieces, f=seconds, b=seconds)
def test_without_transfers_all_three_are_one(p: int, m: int, f: float, b: float) -> None:
    busy_s = m * (f + b)
    alone_s = busy_s / (1 - formulas.bubble(p, m))
    assert formulas.blocking_s(p, m, compute_s=f + b, transfer_s=0) == pytest.approx(alone_s)
    assert formulas.overlapped_s(p, m, forward_s=f, backward_s=b, transfer_s=0) == pytest.approx(
        alone_s
    )


@given(p=stages, m=pieces, f=seconds, b=seconds, t=seconds)
def test_overlapping_never_takes_longer_than_blocking(
    p: int, m: int, f: float, b: float, t: float
) -> None:
    overlapped_s = formulas.overlapped_s(p, m, forward_s=f, backward_s=b, transfer_s=t)
    assert overlapped_s <= formulas.blocking_s(p, m, compute_s=f + b, transfer_s=t) * (1 + 1e-9)


def is_best(best: float, step_s: Callable[[float], float]) -> bool:
    """Whether no number of micro-batches near `best` is better."""
    return all(step_s(best) <= step_s(best * by) * (1 + 1e-9) for by in (0.5, 0.9, 1.1, 2.0))


@given(p=st.integers(2, 3), c=seconds, a=seconds, alpha=seconds, w=seconds)
def test_the_best_number_for_blocking_sends(
    p: int, c: float, a: float, alpha: float, w: float
) -> None:
    best = formulas.best_blocking(p, batch_s=c, overhead_s=a, delay_s=alpha)

    def step_s(m: float) -> float:
        each_s, transfer_s = c / m + a, alpha + w / m
        return m * each_s + (p - 1) * (each_s + 2 * m * transfer_s)

    assert is_best(best, step_s)


@given(p=stages, c=seconds, a=seconds, alpha=seconds, w=seconds)
def test_the_best_number_where_the_link_is_slowest(
    p: int, c: float, a: float, alpha: float, w: float
) -> None:
    best = formulas.best_link_bound(p, batch_s=c, link_s=w, delay_s=alpha)

    def step_s(m: float) -> float:
        transfer_s = alpha + w / m
        return p * (c / m + a) + 2 * (p - 1) * transfer_s + (m - 1) * 2 * transfer_s

    assert is_best(best, step_s)


@given(p=stages, c=seconds, a=seconds, alpha=seconds, w=seconds)
def test_the_best_number_where_a_stage_is_slowest(
    p: int, c: float, a: float, alpha: float, w: float
) -> None:
    best = formulas.best_compute_bound(p, batch_s=c, link_s=w, overhead_s=a)

    def step_s(m: float) -> float:
        return (p + m - 1) * (c / m + a) + 2 * (p - 1) * (alpha + w / m)

    assert is_best(best, step_s)


def test_where_a_message_costs_nothing_more_are_always_better() -> None:
    assert formulas.best_blocking(2, batch_s=1, overhead_s=0, delay_s=0) == math.inf
    assert formulas.best_link_bound(2, batch_s=1, link_s=1, delay_s=0) == math.inf
    assert formulas.best_compute_bound(2, batch_s=1, link_s=1, overhead_s=0) == math.inf
