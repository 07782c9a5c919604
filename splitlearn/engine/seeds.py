"""One seed for each piece of work, so that randomness does not depend on who works when.

Dropout in a stage is drawn from a generator seeded by the run's seed, the step, the micro-batch and
the stage's name. A step done again after a crash draws the same numbers; nothing has to be saved.
"""

import hashlib

import torch

__all__ = ["seed_stage", "stage_seed"]


def stage_seed(seed: int, *, step: int, micro_batch: int, stage: str) -> int:
    """63 bits that look random in each argument.

    >>> stage_seed(0, step=0, micro_batch=0, stage="top") == stage_seed(0, step=0, micro_batch=1, stage="top")
    False
    """
    digest = hashlib.sha256(f"{seed}/{step}/{micro_batch}/{stage}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_stage(seed: int, *, step: int, micro_batch: int, stage: str) -> None:
    """Seed torch for one stage's forward of one micro-batch."""
    torch.manual_seed(stage_seed(seed, step=step, micro_batch=micro_batch, stage=stage))
