"""Which step loses so much, or takes so many bytes: secants between bounds, in logarithms of both.

What a step loses and what it takes are near straight lines in logarithms, so that three or four tries do.
"""

# S numbers of a sample

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from splitlearn.codecs.bands import LARGEST
from splitlearn.codecs.rounding import whole

__all__ = ["LEAST_STEP", "MOST_STEP", "Found", "found", "losing", "usable"]

# A step's inverse, and the step itself, are normal float32 numbers.
LEAST_STEP, MOST_STEP = 2.0**-126, 2.0**126


class Found(NamedTuple):
    """slope: of the amount's logarithm over the step's, where it was last looked at."""

    step: float
    slope: float


def usable(step: float, *, largest: float) -> float:
    """The next step that a message whose largest number is `largest` can be written with."""
    return min(max(step, _finest(largest), LEAST_STEP), MOST_STEP)


def found(
    amount: Callable[[float], float],
    *,
    wanted: float,
    first: Found,
    bounds: tuple[float, float],
    close: float,
    tries: int,
) -> Found:
    """A step of about `wanted`: within `close` of it, or the last of so many tries.

    amount: of a step; it rises or falls with it as `first.slope` does.
    """
    low, high = bounds
    rises = first.slope > 0
    step, slope = min(max(first.step, low), high), first.slope
    before: tuple[float, float] | None = None
    tried = set[float]()
    for _ in range(tries):
        tried.add(step)
        here = math.log(step), math.log(max(amount(step), _LEAST))
        beyond = here[1] - math.log(max(wanted, _LEAST))
        if before is not None and here[0] != before[0]:
            slope = (here[1] - before[1]) / (here[0] - before[0])
            slope = math.copysign(min(max(abs(slope), 0.2), 5.0), first.slope)
        if abs(beyond) < close:
            break
        low, high = (step, high) if (beyond < 0) == rises else (low, step)
        if high < low * (1 + close / 10):
            break
        before = here
        guess = math.exp(min(max(here[0] - beyond / slope, math.log(low)), math.log(high)))
        step = math.sqrt(low * high) if guess in tried else guess
    return Found(step, slope)


def losing(allowed: float, x_S: Tensor, *, largest: float) -> float:
    """The step that loses so much of these numbers, as the root of the mean square."""
    scaled_S = x_S / largest

    def lost(step: float) -> float:
        back_S = whole(scaled_S, step=step).mul_(step).sub_(scaled_S)
        return float(torch.linalg.vector_norm(back_S)) / math.sqrt(len(scaled_S))

    allowed = allowed / largest
    step = found(
        lost,
        wanted=allowed,
        # A step far below the numbers loses a 12th of its square, and the dead zone's part.
        first=Found(3.3 * allowed, 1.0),
        bounds=(_finest(1.0), 2.0),
        close=_CLOSE,
        tries=_TRIES,
    ).step
    return usable(step * largest, largest=largest)


_TRIES = 24
_CLOSE = 0.004
_LEAST = 1e-30


def _finest(largest: float) -> float:
    return largest / (LARGEST - 1)
