"""The number of threads is what was asked for."""

import os

import torch

from splitlearn.engine.state.threads import several_cores, use_threads


def test_zero_leaves_the_number_and_another_sets_it() -> None:
    before = torch.get_num_threads()
    use_threads(0)
    assert torch.get_num_threads() == before
    try:
        use_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_process_that_is_pinned_to_one_core_has_one() -> None:
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert not several_cores()
    finally:
        os.sched_setaffinity(0, cores)
    assert several_cores() == (len(cores) > 1)
