"""One seed for each piece of work, so that randomness does not depend on who works when.

Dropout in a stage is drawn from a generator seeded by the run's seed, the step, the micro-batch and
the stage's name. A step done again after a crash draws the same numbers; nothing has to be saved.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["Draws", "offer_seed", "seeded", "stage_seed"]

# One more than the largest seed that an offer can carry.
_SEEDS = 10_000_001


def stage_seed(seed: int, *, step: int, micro_batch: int, stage: str) -> int:
    """63 bits that look random in each argument.

    >>> stage_seed(0, step=0, micro_batch=0, stage="top") == stage_seed(0, step=0, micro_batch=1, stage="top")
    False
    """
    digest = hashlib.sha256(f"{seed}/{step}/{micro_batch}/{stage}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def offer_seed(seed: int, *, party: int) -> int:
    """The seed in the offer to a compute party: the run's own for the first, party 0.

    Two parties of a chain both call their stage "trunk"; with one seed they would drop the same places.

    >>> offer_seed(7, party=0), offer_seed(7, party=1) == offer_seed(7, party=2)
    (7, False)
    """
    if not party:
        return seed
    return stage_seed(seed, step=0, micro_batch=0, stage=f"party {party}") % _SEEDS


@contextmanager
def seeded(seed: int, *, step: int, micro_batch: int, stage: str) -> Iterator[None]:
    """Draw from the stage's own seed inside the block, on whatever device: torch seeds them all.

    torch has one generator a process and device. Two parties in one process, as in tests and notebooks, take
    turns here; two processes never wait.
    """
    with _generator:
        torch.manual_seed(stage_seed(seed, step=step, micro_batch=micro_batch, stage=stage))
        yield


class Draws:
    """One stream of random numbers, gone on with where it stopped whatever else drew in between.

    device: where tensors are drawn; each has a generator of its own, and other numbers for one seed.
    """

    def __init__(self, seed: int, *, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008
        self._device = device
        self._state = torch.Generator(device).manual_seed(seed).get_state()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw from this stream inside the block; torch's generator is as before afterwards."""
        with _generator:
            before = self._get()
            self._set(self._state)
            try:
                yield
            finally:
                self._state = self._get()
                self._set(before)

    def _get(self) -> Tensor:
        if self._device.type == "cpu":
            return torch.get_rng_state()
        state: Tensor = torch.get_device_module(self._device).get_rng_state(self._device)
        return state

    def _set(self, state: Tensor) -> None:
        if self._device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self._device).set_rng_state(state, self._device)


_generator = threading.Lock()
