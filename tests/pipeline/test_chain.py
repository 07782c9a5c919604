"""Chains to simulate, and those that cannot be."""

import pytest
from hypothesis import strategies as st

from splitlearn.pipeline.chain import Chain, Pipe, StageCosts
from splitlearn.pipeline.schedule import ORDERS

seconds = st.floats(1e-3, 2)
orders = st.sampled_from(sorted(ORDERS))


def chain(**changes: object) -> Chain:
    given: dict[str, object] = {
        "micro_batches": 4,
        "in_flight": 4,
        "bottom_s": 1.0,
        "top_s": 3.0,
        "bottom_backward_s": 2.0,
        "stages": (StageCosts(1.0, 2.0),),
        "activation": 100,
        "output": 100,
        "gradient": 100,
        "input_gradient": 100,
    }
    return Chain(**{**given, **changes})  # type: ignore[arg-type]


chains = st.builds(
    chain,
    micro_batches=st.integers(1, 12),
    in_flight=st.integers(1, 8),
    order=orders,
    bottom_s=seconds,
    top_s=seconds,
    bottom_backward_s=seconds,
    stages=st.lists(st.builds(StageCosts, seconds, seconds), min_size=1, max_size=1).map(tuple),
    activation=st.integers(1, 10**6),
    output=st.integers(1, 10**6),
    up=st.builds(Pipe, st.floats(1e5, 1e9), st.floats(0, 0.5)),
    down=st.builds(Pipe, st.floats(1e5, 1e9), st.floats(0, 0.5)),
    update_s=seconds,
    stage_update_s=seconds,
)


@pytest.mark.parametrize(
    "changes",
    [
        {"stages": ()},
        {"hops": (1,)},
        {"stages": (StageCosts(1), StageCosts(1)), "hops": (1,)},
        {"gradient": None},
    ],
)
def test_a_chain_that_cannot_be_is_our_own_mistake(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|right|gradient"):
        chain(**changes)
