"""Half a byte, a quarter of one or a whole one a value, with a scale a row or a group of a row.

N rows, D width, G groups a row, S values in a group
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, bounded, check, to_part, to_tensor
from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

__all__ = ["Packed"]


class Packed:
    """Symmetric codes of 8, 4 or 2 bits; `group` values share a scale, the whole row where it is 0.

    8 and 4 bits: 127 or 7 steps up to the largest magnitude, and zero stays zero. 2 bits: half a
    deviation or one and a half, so that a small value becomes half of one and a large one is cut off; a
    group of zeros stays zero. rotated: each row first goes through a Hadamard matrix, which spreads
    outliers over all values, in blocks of the largest power of two that divides the width, up to 128.
    Within a factor of 2 of float32's largest number values may be cut off, rotated within 2,000.
    """

    def __init__(self, name: str, *, bits: int, group: int = 0, rotated: bool = False) -> None:
        assert bits in _SPAN
        self.name = name
        self._bits, self._group, self._rotated = bits, group, rotated

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        bounded(*x_ND.shape)
        rows, width = x_ND.shape
        if self._rotated:
            # Scaled first: a block's sum of the largest numbers there are is not one.
            x_ND = _rotated(x_ND.clamp(-_MOST_ROTATED, _MOST_ROTATED))
        groups, size = self._groups(width)
        x_NGS = torch.nn.functional.pad(x_ND, (0, groups * size - width)).view(rows, groups, size)
        scale_NG = self._scales(x_NGS, width=width)
        inverse_NG1 = scale_NG.float().reciprocal().nan_to_num(posinf=0.0).unsqueeze(2)
        if self._bits == 2:
            codes_NGS = torch.mul(x_NGS, inverse_NG1).floor_().clamp_(-2, 1)
        else:
            span = _SPAN[self._bits]
            codes_NGS = torch.mul(x_NGS, inverse_NG1).round_().clamp_(-span, span)
        codes_NW = codes_NGS.view(rows, groups * size)[:, :width].to(torch.int8)
        return to_part("x", _joined(codes_NW, self._bits)), to_part("scale", scale_NG)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        scale_NG = to_tensor(parts[1]).float()
        fits_NG = (scale_NG == 0) | (
            (scale_NG >= _LEAST_SCALE) & (scale_NG <= _MOST_SCALE[self._bits])
        )
        if not bool(fits_NG.all()):
            raise WireError(f"the peer's {self.name} payload has a scale outside the normal range")
        codes_ND = _parted(to_tensor(parts[0]), self._bits, width=width).to(torch.float32)
        if self._bits == 2:
            codes_ND += 0.5
        elif bool((codes_ND < -_SPAN[self._bits]).any()):
            raise WireError(f"the peer's {self.name} payload has a code that no value gives")
        groups, size = self._groups(width)
        scale_ND = scale_NG.repeat_interleave(size, dim=1)[:, :width] if groups > 1 else scale_NG
        x_ND = codes_ND.mul_(scale_ND)
        return _rotated(x_ND) if self._rotated else x_ND

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        together = 8 // self._bits
        groups, _ = self._groups(width)
        return (
            Slot("x", "U8", (rows, -(-width // together))),
            Slot("scale", "BF16", (rows, groups)),
        )

    def _groups(self, width: int) -> tuple[int, int]:
        size = self._group or max(width, 1)
        return max(1, -(-width // size)), size

    def _scales(self, x_NGS: Tensor, *, width: int) -> Tensor:
        if self._bits == 2:
            groups, size = x_NGS.shape[1:]
            held_G = torch.full((groups,), float(size))
            held_G[-1] = width - (groups - 1) * size
            # Of a bell curve, the deviation from the mean size; summed where the largest has room.
            scale_NG = x_NGS.abs().mul_(1 / size).sum(2) * (size / held_G.clamp(min=1)) * _DEVIATION
        else:
            scale_NG = x_NGS.abs().amax(2).div_(_SPAN[self._bits])
        zero_NG = scale_NG == 0
        scale_NG = scale_NG.clamp_(_LEAST_SCALE, _MOST_SCALE[self._bits]).to(torch.bfloat16)
        return scale_NG.masked_fill_(zero_NG, 0.0)


_SPAN = {8: 127, 4: 7, 2: 1}
_DEVIATION = math.sqrt(math.pi / 2)
# Powers of two within float32's normal range, so that inverses are too, and so that no code of ours times
# its scale is infinite, rotated back included.
_LEAST_SCALE = 2.0**-126
_MOST_SCALE = {8: 2.0**121, 4: 2.0**125, 2: 2.0**126}
_MOST_ROTATED = 2.0**117
_BLOCK = 128


def _joined(codes_ND: Tensor, bits: int) -> Tensor:
    """Neighbours in one byte, the first in the lowest bits; a row ends with a whole byte."""
    together = 8 // bits
    if together == 1:
        return codes_ND.view(torch.uint8)
    codes_ND = torch.nn.functional.pad(codes_ND, (0, -codes_ND.shape[1] % together))
    low_ND: Tensor = codes_ND.view(torch.uint8) & (2**bits - 1)
    joined = low_ND[:, ::together].clone()
    for k in range(1, together):
        joined |= low_ND[:, k::together] << (k * bits)
    return joined


def _parted(joined: Tensor, bits: int, *, width: int) -> Tensor:
    """Int8 codes; WireError where bits are set behind a row's end."""
    together = 8 // bits
    if together == 1:
        return joined.view(torch.int8)
    codes = torch.empty((joined.shape[0], joined.shape[1], together), dtype=torch.uint8)
    for k in range(together):
        codes[:, :, k] = (joined >> (k * bits)) & (2**bits - 1)
    codes_NW = codes.view(joined.shape[0], joined.shape[1] * together)
    if bool(codes_NW[:, width:].any()):
        raise WireError("the peer's packed payload has bits behind the end of a row")
    half = 2 ** (bits - 1)
    codes_ND: Tensor = (codes_NW[:, :width] ^ half).to(torch.int8) - half
    return codes_ND


def _rotated(x_ND: Tensor) -> Tensor:
    """Its own inverse."""
    width = x_ND.shape[1]
    block = math.gcd(width, _BLOCK)
    if block < 2 or not x_ND.numel():
        return x_ND
    h_SS = torch.ones(1, 1)
    while len(h_SS) < block:
        h_SS = torch.cat((torch.cat((h_SS, h_SS), 1), torch.cat((h_SS, -h_SS), 1)))
    y_ND: Tensor = x_ND.reshape(-1, block) @ (h_SS / math.sqrt(block))
    return y_ND.view(-1, width)
