"""Two bytes a value: float16 with a common exponent, and bfloat16. No statistics beyond one maximum.

N rows, D width
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, check, to_part, to_tensor
from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

__all__ = ["BFloat16", "Float16"]


class Float16:
    """Float16 after a shift by a power of two that puts the message's largest value in [2^14, 2^15).

    Plain float16 loses gradients: a mean over a batch makes values of 1e-6 and less, where float16 has
    few bits left or none. With the shift, every value within 2^28 of the largest keeps 11 bits, so the
    relative error is at most 2^-11; smaller ones lose at most 2^-40 of the largest.
    """

    name = "fp16"

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        _, exponent = math.frexp(float(x_ND.abs().amax()) if x_ND.numel() else 0.0)
        shift = max(exponent - _TOP_EXPONENT, _LEAST_SHIFT)
        codes_ND = torch.mul(x_ND, 2.0**-shift).to(torch.float16)
        return to_part("x", codes_ND), to_part("shift", torch.tensor([shift], dtype=torch.int8))

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        check(parts, self.layout(rows=rows, width=width))
        shift = int(to_tensor(parts[1]))
        if not _LEAST_SHIFT <= shift <= _MOST_SHIFT:
            raise WireError(
                f"the peer's fp16 payload has shift {shift}; a float32 message takes one from "
                f"{_LEAST_SHIFT} to {_MOST_SHIFT}"
            )
        return to_tensor(parts[0]).to(torch.float32).mul_(2.0**shift)

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        return (Slot("x", "F16", (rows, width)), Slot("shift", "I8", (1,)))


class BFloat16:
    """Bfloat16, rounded to nearest: relative error at most 2^-8 over all of float32's normal range."""

    name = "bf16"

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        return (to_part("x", x_ND.detach().to(torch.bfloat16)),)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        check(parts, self.layout(rows=rows, width=width))
        return to_tensor(parts[0]).to(torch.float32)

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        return (Slot("x", "BF16", (rows, width)),)


# Float16 ends just below 2^16; 2^15 leaves room for rounding up.
_TOP_EXPONENT = 15
# 2^-_LEAST_SHIFT and its inverse must both be normal float32 numbers.
_LEAST_SHIFT = -126
_MOST_SHIFT = 128 - _TOP_EXPONENT
