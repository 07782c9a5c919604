"""Noise and what it is worth, against the figures of the dp-accounting package and against sampling."""

import json
import math
import random
from itertools import pairwise
from pathlib import Path

import pytest

from splitlearn.policy.accounting import (
    REPLACED,
    gaussian,
    gaussian_delta,
    gaussian_epsilon,
    keep_probability,
    randomised_response,
    releases_of,
    response_epsilon,
    sigma_for,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "dp_accounting.json").read_text())


def named(case: dict[str, float]) -> str:
    return " ".join(f"{name} {value:g}" for name, value in case.items() if name != "epsilon")


@pytest.mark.parametrize("case", VECTORS["gaussian"], ids=named)
def test_epsilon_of_noise_is_that_of_dp_accounting_to_three_decimals(
    case: dict[str, float],
) -> None:
    found = gaussian_epsilon(
        case["delta"], sigma=case["sigma"], releases=int(case["releases"]), sensitivity=1.0
    )
    assert found == pytest.approx(case["epsilon"], abs=5e-4)


@pytest.mark.parametrize("case", VECTORS["response"], ids=named)
def test_epsilon_of_randomised_response_is_that_of_dp_accounting_to_three_decimals(
    case: dict[str, float],
) -> None:
    classes = int(case["classes"])
    found = response_epsilon(case["keep"], classes=classes)
    assert found == pytest.approx(case["epsilon"], abs=5e-4)
    assert keep_probability(found, classes=classes) == pytest.approx(case["keep"])


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 3.0, 40.0, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_epsilon_delta_and_sigma_lead_back_to_one_another(sigma: float, delta: float) -> None:
    how = {"releases": 7, "sensitivity": REPLACED}
    epsilon = gaussian_epsilon(delta, sigma=sigma, **how)
    reached = gaussian_delta(epsilon, sigma=sigma, **how)
    assert reached <= delta * (1 + 1e-9)
    if epsilon == 0:  # the noise alone gives this delta, and a little less would
        assert sigma_for(1e-9, delta=delta, **how) <= sigma
    else:
        assert reached == pytest.approx(delta, rel=1e-6)
        assert sigma_for(epsilon, delta=delta, **how) == pytest.approx(sigma, rel=1e-6)


def test_no_release_tells_nothing_and_every_further_one_tells_more() -> None:
    found = [gaussian(noise=2.0, delta=1e-5, releases=n).epsilon for n in range(6)]
    assert found[0] == 0
    assert all(one < next_ for one, next_ in pairwise(found))
    assert gaussian(noise=4.0, delta=1e-5, releases=5).epsilon < found[5]


def test_delta_is_the_chance_of_a_loss_above_epsilon_as_sampled() -> None:
    draws = random.Random(0)
    mu, epsilon, count = 1.5, 0.8, 200_000
    # Of y ~ N(mu, 1) against N(0, 1): delta = E[max(0, 1 - exp(epsilon - loss))].
    losses = (mu * draws.gauss(mu, 1) - mu * mu / 2 for _ in range(count))
    sampled = sum(max(0.0, 1 - math.exp(epsilon - loss)) for loss in losses) / count
    exact = gaussian_delta(epsilon, sigma=1.0, releases=1, sensitivity=mu)
    assert exact == pytest.approx(sampled, abs=5e-3)


@pytest.mark.parametrize("a", [5.9, 6.1])
def test_the_two_ways_to_a_tail_meet(a: float) -> None:
    # The same mu on both sides of the switch from erfc to the continued fraction.
    mu = 0.01
    delta = gaussian_delta(mu * (a + mu / 2), sigma=1.0, releases=1, sensitivity=mu)
    slope = mu * (math.exp(-a * a / 2) / math.sqrt(2 * math.pi) - a * math.erfc(a / 2**0.5) / 2)
    assert delta == pytest.approx(slope, rel=0.05)


def test_a_guarantee_says_unit_relation_and_number_of_releases() -> None:
    noisy = gaussian(noise=8.0, delta=1e-5, releases=3)
    assert (noisy.unit, noisy.relation, noisy.releases) == ("example", "replace-labels", 3)
    assert noisy.epsilon == gaussian_epsilon(1e-5, sigma=4.0, releases=3, sensitivity=1.0)
    flipped = randomised_response(1.5)
    assert (flipped.epsilon, flipped.delta, flipped.unit) == (1.5, 0.0, "label")


def test_an_example_is_counted_once_an_epoch_and_again_for_every_step_done_again() -> None:
    once = [(step // 3, step, piece) for step in range(6) for piece in range(2)]
    assert releases_of(once) == 2
    assert releases_of([*once, (1, 4, 0)]) == 3
    assert releases_of([*once, (1, 4, 0), (1, 5, 1), (1, 4, 0)]) == 4
    assert releases_of([*once, (0, 0, 0), (1, 5, 1)]) == 4
    assert releases_of([]) == 0
