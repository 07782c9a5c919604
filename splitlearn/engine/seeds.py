"""One seed for each piece of work, so that randomness does not depend on who works when.

Dropout in a stage is drawn from a generator seeded by the run's seed, the step, the micro-batch and
the stage's name. A step done again after a crash draws the same numbers; nothing has to be saved.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded", "stage_seed"]


def stage_seed(seed: int, *, step: int, micro_batch: int, stage: str) -> int:
    """63 bits that look random in each argument.

    >>> stage_seed(0, step=0, micro_batch=0, stage="top") == stage_seed(0, step=0, micro_batch=1, stage="top")
    False
    """
    digest = hashlib.sha256(f"{seed}/{step}/{micro_batch}/{stage}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(seed: int, *, step: int, micro_batch: int, stage: str) -> Iterator[None]:
    """Draw from the stage's own seed inside the block.

    torch has one generator a process. Two parties in one process, as in tests and notebooks, take
    turns here; two processes never wait.
    """
    with _generator:
        torch.manual_seed(stage_seed(seed, step=step, micro_batch=micro_batch, stage=stage))
        yield


_generator = threading.Lock()
