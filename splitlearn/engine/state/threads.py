"""How many processor threads torch may use in this process."""

import os

import torch

__all__ = ["several_cores", "use_threads"]


def several_cores() -> bool:
    """Whether this process may run on more than one core: else two threads only take turns."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


def use_threads(count: int) -> None:
    """Let torch use `count` threads; 0 leaves the number that it found.

    Two parties on one machine should share its cores: threads that spin on each other's cores slow
    both down several times. Sums may differ in their last bits between numbers of threads.
    """
    if count:
        torch.set_num_threads(count)
