"""Only some values of each row, in float16: the largest, or ones drawn by a seed that travels.

N rows, D width, K kept values a row
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from splitlearn.codecs.base import Slot, bounded, check, to_part, to_tensor
from splitlearn.codecs.cast import Float16
from splitlearn.errors import WireError
from splitlearn.wire.tensors import Part

__all__ = ["RandomK", "TopK"]


class TopK:
    """The largest values of each row, a `share` of its width and at least one; one bit a value says which."""

    def __init__(self, name: str, *, share: float) -> None:
        self.name = name
        self._share = share

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32)
        bounded(*x_ND.shape)
        rows, width = x_ND.shape
        at_NK = x_ND.abs().topk(_kept(width, self._share), dim=1, sorted=False).indices
        mask_ND = torch.zeros((rows, width), dtype=torch.bool).scatter_(1, at_NK, value=True)
        bits = torch.from_numpy(np.packbits(mask_ND.numpy(), axis=1, bitorder="little"))
        kept_NK = x_ND[mask_ND].view(at_NK.shape)
        return (*Float16().encode(kept_NK), to_part("at", bits))

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        kept = _kept(width, self._share)
        bits = to_tensor(parts[2]).numpy()
        mask = np.unpackbits(bits, axis=1, bitorder="little").view(np.bool_)
        if mask[:, width:].any() or (np.count_nonzero(mask, axis=1) != kept).any():
            raise WireError(
                f"the peer's {self.name} payload does not keep {kept} values of each row"
            )
        x_ND = torch.zeros((rows, width))
        x_ND[torch.from_numpy(mask[:, :width])] = (
            Float16().decode(parts[:2], rows=rows, width=kept).view(-1)
        )
        return x_ND

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        kept = Float16().layout(rows=rows, width=_kept(width, self._share))
        return (*kept, Slot("at", "U8", (rows, -(-width // 8))))


class RandomK:
    """A `share` of the columns, at least one, the same in all rows of a message and others in the next.

    The seed is a hash of the rows, so that a step done again is the same; whoever guesses what was left out
    can test a guess by it, as by the values that are sent. Values are not scaled up.
    """

    def __init__(self, name: str, *, share: float) -> None:
        self.name = name
        self._share = share

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        x_ND = x_ND.detach().to(torch.float32).contiguous()
        bounded(*x_ND.shape)
        seed = hashlib.blake2b(x_ND.cpu().numpy().data, digest_size=_SEED_BYTES).digest()
        at_K = _drawn(seed, width=x_ND.shape[1], kept=_kept(x_ND.shape[1], self._share))
        seed_part = Part(name="seed", dtype="U8", shape=(_SEED_BYTES,), data=seed)
        return (*Float16().encode(x_ND[:, at_K]), seed_part)

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        bounded(rows, width)
        check(parts, self.layout(rows=rows, width=width))
        kept = _kept(width, self._share)
        x_ND = torch.zeros((rows, width))
        x_ND[:, _drawn(bytes(parts[2].data), width=width, kept=kept)] = Float16().decode(
            parts[:2], rows=rows, width=kept
        )
        return x_ND

    def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
        kept = Float16().layout(rows=rows, width=_kept(width, self._share))
        return (*kept, Slot("seed", "U8", (_SEED_BYTES,)))


_SEED_BYTES = 8


def _kept(width: int, share: float) -> int:
    return max(1, round(share * width))


def _drawn(seed: bytes, *, width: int, kept: int) -> Tensor:
    """Columns, in order. Of numpy's generators only the raw bits are the same in every version."""
    raw_D = np.random.Philox(key=int.from_bytes(seed, "little")).random_raw(width)
    return torch.from_numpy(np.sort(np.argsort(raw_D, kind="stable")[:kept]))
