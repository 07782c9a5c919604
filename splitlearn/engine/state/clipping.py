"""Gradient clipping by the norm of the whole model's gradient, whoever holds which part of it.

As `torch.nn.utils.clip_grad_norm_` on the unsplit model, but for the order of sums: each weight's norm
is computed in float64, and their squares are added exactly. So the sum is the same however the weights
are shared out, and the unsplit loop has the split run's factor to the bit.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Protocol

import torch
from torch import nn

from splitlearn.engine.state.optimiser import Stepper
from splitlearn.errors import ManifestError, PeerError
from splitlearn.wire.messages import Norm

__all__ = ["Elsewhere", "clip", "factor_of", "norm_of", "pieces", "scale", "square_of"]

# As torch's: a gradient of length zero is not divided by.
_EPSILON = 1e-6


class Elsewhere(Protocol):
    """Gradients that another party holds."""

    def square(self) -> Fraction:
        """Their squared norm."""
        ...

    def scale(self, step: int, factor: float) -> None:
        """Have them multiplied, and stepped with."""
        ...


def clip(stepper: Stepper, *, limit: float, step: int, others: Sequence[Elsewhere] = ()) -> float:
    """Scale the gradients of `stepper` and those elsewhere to a norm of at most `limit`.

    The norm that they had together. ManifestError where a gradient of ours is not finite.
    """
    own = square_of(stepper.parameters)
    if own is None:
        raise ManifestError(
            f"the gradient of step {step} is not finite, so it has no norm to clip by; training has "
            "come apart: lower optimiser.learning_rate, or begin anew from other weights"
        )
    square = sum((other.square() for other in others), own)
    factor = factor_of(square, limit=limit)
    for other in others:
        other.scale(step, factor)
    scale(stepper.parameters, factor)
    return math.sqrt(square)


def norm_of(stepper: Stepper, *, step: int, peer: str) -> Norm:
    """What a compute party says at the end of a step, before the factor comes; PeerError as above."""
    square = square_of(stepper.parameters)
    if square is None:
        raise PeerError(
            f"the gradient of step {step} by the trunk's weights is not finite, so it has no norm to clip "
            f"by; training has come apart: {peer} has to lower optimiser.learning_rate"
        )
    return Norm(step, pieces(square))


def square_of(parameters: Iterable[nn.Parameter]) -> Fraction | None:
    """The exact sum of the weights' squared gradient norms, each a float64; None where one is not finite."""
    norms = [
        float(torch.linalg.vector_norm(p.grad, dtype=torch.float64))
        for p in parameters
        if p.grad is not None
    ]
    squares = [norm * norm for norm in norms]
    if not all(map(math.isfinite, squares)):
        return None
    return sum(map(Fraction, squares), Fraction())


def pieces(square: Fraction) -> tuple[float, ...]:
    """Floats, the largest first, whose sum is exactly `square`, which is a sum of floats itself.

    >>> pieces(Fraction(1.0) + Fraction(1e-30)), pieces(Fraction())
    ((1.0, 1e-30), ())
    """
    out = []
    while square:
        piece = float(square)
        if piece > square:  # what is left must not be negative
            piece = math.nextafter(piece, 0.0)
        out.append(piece)
        square -= Fraction(piece)
    return tuple(out)


def factor_of(square: Fraction, *, limit: float) -> float:
    """What a gradient of this squared norm is multiplied by, at most 1.

    >>> factor_of(Fraction(4), limit=3.0), round(factor_of(Fraction(4), limit=1.0), 6)
    (1.0, 0.5)
    """
    return min(1.0, limit / (math.sqrt(square) + _EPSILON))


def scale(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply the gradients, in place."""
    if factor < 1.0:
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(factor)
