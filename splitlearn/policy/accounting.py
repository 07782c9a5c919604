"""How much noise on labels is worth: exact epsilon and delta, for whoever has the numbers.

Two mechanisms. Gaussian noise, added to something of bounded change once a release and composed over
all releases exactly (a Gaussian mechanism composed k times is one with sqrt(k) times the change).
Randomised response, drawn once: a label is kept with a probability or replaced by any other of the
set. Every figure holds for one unit and one neighbouring relation, which its docstring names, and
says nothing about anything else that leaves. Computes, decides nothing, and needs no torch.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

__all__ = [
    "REPLACED",
    "Guarantee",
    "gaussian",
    "gaussian_delta",
    "gaussian_epsilon",
    "keep_probability",
    "randomised_response",
    "releases_of",
    "response_epsilon",
    "sigma_for",
]

# Times the clipping norm: how far one clipped vector can be from another, which is what replacing
# one means. Adding or removing one would be 1.
REPLACED = 2.0


class Guarantee(msgspec.Struct, frozen=True, kw_only=True):
    """What a protection of labels gives, as metrics.json and reports print it.

    epsilon, delta: of the differential privacy of one unit. unit: "example" (all labels of one
    example) or "label" (the one label of an example, or of one of its words). relation:
    "replace-labels": the two data sets that cannot be told apart differ in the labels of one unit,
    and in nothing else: texts, and how many labels there are, are not covered. releases: times that
    the unit's labels went into something that was sent.
    """

    mechanism: Literal["gaussian", "randomised-response"]
    epsilon: float
    delta: float
    releases: int
    unit: Literal["example", "label"]
    relation: Literal["replace-labels"] = "replace-labels"


def gaussian(*, noise: float, delta: float, releases: int) -> Guarantee:
    """Of clipped gradients with Gaussian noise of `noise` times the clipping norm.

    Unit: all labels of one example. Relation: those labels replaced, so the sensitivity is
    REPLACED times the clipping norm, whatever that is. No release: nothing was told, epsilon 0.
    """
    return Guarantee(
        mechanism="gaussian",
        epsilon=gaussian_epsilon(delta, sigma=noise, releases=releases, sensitivity=REPLACED),
        delta=delta,
        releases=releases,
        unit="example",
    )


def randomised_response(epsilon: float) -> Guarantee:
    """Of labels that were randomised once, before anything was computed from them: delta is 0, and
    using them again costs nothing. Drawing anew does: then the epsilons of all draws add up.
    """
    return Guarantee(
        mechanism="randomised-response", epsilon=epsilon, delta=0.0, releases=1, unit="label"
    )


def releases_of(sent: Iterable[tuple[int, int, int]]) -> int:
    """How often, at most, one example took part in gradients: `sent` has the epoch, step and
    micro-batch of each gradient message that left, those done again after a restart included.

    An example is in one micro-batch of each epoch, so the worst of each epoch counts.

    >>> releases_of([(0, 0, 0), (0, 1, 0), (0, 1, 0), (1, 2, 0), (1, 3, 0)])
    3
    """
    worst: dict[int, int] = {}
    for (epoch, _, _), times in Counter(sent).items():
        worst[epoch] = max(worst.get(epoch, 0), times)
    return sum(worst.values())


def gaussian_delta(epsilon: float, *, sigma: float, releases: int, sensitivity: float) -> float:
    """The delta that `releases` values with Gaussian noise of standard deviation `sigma` have at
    `epsilon`, where one unit moves each value by `sensitivity` (L2) at most.

    Unit and relation are those that the sensitivity is of. Exact: Balle and Wang (1805.06530),
    theorem 8, with the composition of Dong, Roth and Su (1905.02383), corollary 3.3:
    mu = sqrt(releases) sensitivity / sigma, delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
    """
    return _delta(epsilon, math.sqrt(releases) * sensitivity / sigma)


def gaussian_epsilon(delta: float, *, sigma: float, releases: int, sensitivity: float) -> float:
    """The least epsilon at `delta`; 0 where the noise alone gives it. Arguments as gaussian_delta's.

    >>> round(gaussian_epsilon(1e-5, sigma=2.0, releases=1, sensitivity=1.0), 3)
    1.993
    """
    mu = math.sqrt(releases) * sensitivity / sigma
    if _delta(0.0, mu) <= delta:
        return 0.0
    return _least(lambda epsilon: _delta(epsilon, mu) <= delta)


def sigma_for(epsilon: float, *, delta: float, releases: int, sensitivity: float) -> float:
    """The least standard deviation that keeps `releases` values within (epsilon, delta)."""
    scale = math.sqrt(releases) * sensitivity
    # By 1/mu, the noise of one release that moves by 1.
    return scale * _least(lambda sigma: sigma > 0 and _delta(epsilon, 1 / sigma) <= delta)


def keep_probability(epsilon: float, *, classes: int) -> float:
    """With which probability randomised response over so many classes keeps a label; the others
    share the rest equally. Unit: one label. Relation: that label replaced. (Warner 1965; Kairouz,
    Oh and Viswanath, 1407.1338: the best that pure epsilon allows.)

    >>> round(keep_probability(1.0, classes=2), 4)
    0.7311
    """
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def response_epsilon(keep: float, *, classes: int) -> float:
    """The epsilon of randomised response that keeps a label with probability `keep`, from
    1 / classes (0: the label says nothing) to below 1.

    >>> round(response_epsilon(0.75, classes=2), 4)
    1.0986
    """
    return math.log(keep * (classes - 1) / (1 - keep))


def _delta(epsilon: float, mu: float) -> float:
    """Of one Gaussian release with noise 1 and sensitivity `mu`.

    With a = mu/2 - eps/mu and b = -mu/2 - eps/mu, e^eps phi(b) = phi(a), so that neither e^eps nor
    a difference of two numbers near 1 is needed.
    """
    if mu == 0:
        return 0.0
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    phi = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a > 0:
        return max(0.0, math.erfc(-a / math.sqrt(2)) / 2 - phi * _mills(-b))
    return phi * (_mills(-a) - _mills(-b))


# From here on the continued fraction is exact to the last bits, before it erfc is.
_FAR = 6.0
_TERMS = 80


def _mills(x: float) -> float:
    """(1 - Phi(x)) / phi(x) for x >= 0."""
    if x < _FAR:
        return math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
    tail = x
    for term in range(_TERMS, 0, -1):
        tail = x + term / tail
    return 1 / tail


def _least(enough: Callable[[float], bool]) -> float:
    """The least number above 0 that is enough, to the last bits; what is above it is enough too."""
    high = 1.0
    while not enough(high):
        high *= 2
    low = 0.0 if high == 1.0 else high / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
