"""Noise on what labels decide: each example's gradient by its logits, clipped, then Gaussian.

That is the one place where a label enters a step. All that follows from it, the gradient that leaves,
the update of the local layers and every later message, is computed from the noisy gradient alone, so
that one noise covers them all. Noise on the rows that leave would not: the local layers would go on
learning from the labels as they are, and other examples' later gradients would tell.

Noise comes from the operating system's generator for secrets, never from the run's seed: a step done
again draws anew, and counts as another release. It is of float32, as the gradients are, and somebody
who reads its last bits is outside what an epsilon promises.
"""

# B batch, T tokens, C classes

import math
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splitlearn.audit import Dp

__all__ = ["LabelNoise"]

# The target that counts for nothing, as in tasks.
_IGNORED = -100


@dataclass(frozen=True)
class LabelNoise:
    """What a job's privacy.gradient_* ask for.

    clip: L2 norm that one example's gradient by its logits has at most, before the step's mean is
    taken. noise: standard deviation as a multiple of `clip`. steps_per_epoch: an epoch shows each
    example once.
    """

    clip: float
    noise: float
    steps_per_epoch: int

    def backward(self, loss: Tensor, *, logits: Tensor, labels: Tensor, items: int) -> None:
        """`loss.backward()`, with noise where `logits` (B, C) or (B, T, C) stand in the graph.

        labels: (B,) or (B, T); tokens without a label get no gradient and no noise. items: what the
        step's mean loss is divided by: the gradient of one example's own loss is `items` times that
        of `loss`.
        """
        (g,) = torch.autograd.grad(loss, logits)
        rows = g.detach().double().reshape(len(g), -1) * items
        norms = rows.norm(dim=1, keepdim=True)
        clipped = rows * (self.clip / norms.clamp(min=self.clip))
        noise = torch.from_numpy(gaussian(rows.numel())).reshape(rows.shape).to(rows.device)
        noisy = (clipped + self.clip * self.noise * noise).reshape(g.shape) / items
        counts = (labels != _IGNORED).unsqueeze(-1).to(noisy.device)
        torch.autograd.backward(logits, (noisy * counts).to(g.dtype))

    def record(self, step: int) -> Dp:
        """What the log says of a gradient of this step."""
        return Dp(
            mechanism="gaussian",
            clip=self.clip,
            noise=self.noise,
            epoch=step // self.steps_per_epoch,
            unit="example",
            relation="replace-labels",
        )


def gaussian(count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Standard normal numbers, by Box and Muller from 53 random bits each."""
    pairs = -(-count // 2)
    bits = np.frombuffer(secrets.token_bytes(16 * pairs), dtype=np.uint64) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * math.pi * uniform[pairs:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
