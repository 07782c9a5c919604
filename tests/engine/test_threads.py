"""The number of threads is what was asked for."""

import torch

from splitlearn.engine.threads import use_threads


def test_zero_leaves_the_number_and_another_sets_it() -> None:
    before = torch.get_num_threads()
    use_threads(0)
    assert torch.get_num_threads() == before
    try:
        use_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
