"""How many processor threads torch may use in this process."""

import torch

__all__ = ["use_threads"]


def use_threads(count: int) -> None:
    """Let torch use `count` threads; 0 leaves the number that it found.

    Two parties on one machine should share its cores: threads that spin on each other's cores slow
    both down several times. Sums may differ in their last bits between numbers of threads.
    """
    if count:
        torch.set_num_threads(count)
