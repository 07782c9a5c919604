"""Where a party does its sums, and in what precision: its own choice, which no peer has to know.

Weights, optimiser state, checkpoints and all that crosses a cut are float32 whatever is chosen here; in
bf16 the products within a forward, and so those of its backward, are of bfloat16 (torch's autocast). On a
CPU in float32 nothing here does anything.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from splitlearn.errors import ManifestError

__all__ = ["CPU", "Device", "find_device"]


@dataclass(frozen=True)
class Device:
    """A device of this machine. bf16: whether products are of bfloat16."""

    at: torch.device = field(default_factory=lambda: torch.device("cpu"))
    bf16: bool = False

    def working(self) -> AbstractContextManager[object]:
        """Around a forward and nothing else: neither codecs nor a backward belong into it.

        A backward has the types of its forward by itself.
        """
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.at.type, dtype=torch.bfloat16)

    def take(self, tensor: Tensor) -> Tensor:
        """The tensor there; the same one where it is there already."""
        return tensor.to(self.at)

    def take_all(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As `take`, of each."""
        return {name: tensor.to(self.at) for name, tensor in tensors.items()}


CPU = Device()


def find_device(name: str, *, precision: str, file: Path | str) -> Device:
    """The device that `file` names in run.device ("cpu", "cuda", "cuda:1"), for run.precision.

    ManifestError where this machine has none such, or it computes no bfloat16.
    """
    at = torch.device(name)
    if at.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (at.index or 0) >= there:
            found = f"finds {there} such" if there else "finds none"
            build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
            raise ManifestError(
                f'{file}: run.device is "{name}", and torch, built {build}, {found} here; see that '
                'nvidia-smi names the device, or take "cpu"'
            )
        at = torch.device("cuda", at.index or 0)
        with torch.cuda.device(at):
            able = torch.cuda.is_bf16_supported(including_emulation=False)
        if precision == "bf16" and not able:
            raise ManifestError(
                f'{file}: run.precision is "bf16", and {torch.cuda.get_device_name(at)} computes no '
                'bfloat16; take "float32"'
            )
    return Device(at, bf16=precision == "bf16")
