"""Several processes of one party that share the rows of each batch: torchrun's ranks.

Rank 0 is the party: it alone talks, counts, saves. The others follow its orders and add gradients
(DistributedDataParallel; gloo on CPUs, nccl on CUDA). Nothing here crosses to another party.
"""

import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from splitlearn.errors import ManifestError

__all__ = ["Ranks"]


class Ranks:
    """world: processes, rank: this one's number."""

    def __init__(self, *, world: int = 1, rank: int = 0, device: str = "cpu") -> None:
        self.world, self.rank, self.device = world, rank, device

    @classmethod
    def found(cls, *, device: str = "cpu") -> "Ranks":
        """As torchrun started this process; one process alone if it didn't.

        Under nccl each rank takes the GPU of its local number. ManifestError where the others do not come.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls(device=device)
        cuda = torch.device(device).type == "cuda"
        if cuda:
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
            torch.cuda.set_device(device)
        try:
            # Between rounds the followers wait as long as rank 0 does; its death ends them at once.
            dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(days=7))
        except (RuntimeError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ManifestError(
                f"the {world} processes of this party cannot meet: {reason}; start all with torchrun"
            ) from None
        return cls(world=world, rank=dist.get_rank(), device=device)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose backward adds up the gradients of all ranks; itself if there is one."""
        if self.world == 1:
            return model
        return DistributedDataParallel(
            model,
            device_ids=None if self.device == "cpu" else [torch.device(self.device)],
        )

    def share(self, count: int) -> range:
        """This rank's rows of `count`: contiguous, even but for one."""
        return range(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    def tell(self, order: int, payload: NDArray[np.int64]) -> None:
        """Rank 0 gives the others an order, above 0, with numbers; at another rank, nothing."""
        if self.world > 1 and self.leads:
            self._spread(torch.tensor([order, len(payload)]))
            if len(payload):
                self._spread(torch.from_numpy(payload))

    def listen(self) -> tuple[int, NDArray[np.int64]]:
        """The next order of rank 0 and its numbers; (0, none) when it closed."""
        order, count = self._spread(torch.zeros(2, dtype=torch.int64)).tolist()
        numbers = torch.zeros(count, dtype=torch.int64)
        return order, (self._spread(numbers) if count else numbers).numpy()

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, at every rank."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def close(self) -> None:
        """Rank 0 lets the others go; then each leaves the group."""
        if self.world > 1:
            if self.leads:
                self.tell(0, np.zeros(0, dtype=np.int64))
            dist.destroy_process_group()

    def _spread(self, tensor: Tensor) -> Tensor:
        there = tensor.to(self.device)
        dist.broadcast(there, src=0)
        return there.cpu()
