"""One byte a value: symmetric int8 with one float32 scale a row.

A row is one token's hidden state, so a token with large values does not coarsen its neighbours.

N rows, D width
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, check, to_part, to_tensor
from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

__all__ = ["Int8"]


class Int8:
    """Error of a value at most half the row's scale, which is the row's largest magnitude / 127.

    Zero stays zero. A row of nothing but denormals becomes zero.
    """

    name = "int8"

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        scale_N = x_ND.abs().amax(dim=1).div_(_LARGEST).clamp_(_LEAST_SCALE, _MOST_SCALE)
        codes_ND = torch.mul(x_ND, scale_N.reciprocal().unsqueeze(1)).round_().to(torch.int8)
        return to_part("x", codes_ND), to_part("scale", scale_N)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        check(parts, self.layout(rows=rows, width=width))
        scale_N = to_tensor(parts[1])
        if not bool(((scale_N >= _LEAST_SCALE) & (scale_N <= _MOST_SCALE)).all()):
            raise WireError("the peer's int8 payload has a scale outside the normal float32 range")
        return to_tensor(parts[0]).to(torch.float32).mul_(scale_N.unsqueeze(1))

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        return (Slot("x", "I8", (rows, width)), Slot("scale", "F32", (rows,)))


_LARGEST = 127.0
# Smallest normal float32: its reciprocal is finite, and so are all codes of a row of zeros.
_LEAST_SCALE = 2.0**-126
# A little below float32's largest number / 127: no code of ours times its scale is infinite, and the
# largest number still rounds to code 127.
_MOST_SCALE = 2.67938e36
