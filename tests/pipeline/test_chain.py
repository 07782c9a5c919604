"""Chains to simulate, and those that cannot be."""

from dataclasses import replace

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
    stages=st.builds(StageCosts, seconds, seconds, seconds).map(lambda stage: (stage,)),
    activation=st.integers(1, 10**6),
    output=st.integers(1, 10**6),
    up=st.builds(Pipe, st.floats(1e5, 1e9), st.floats(0, 0.5)),
    down=st.builds(Pipe, st.floats(1e5, 1e9), st.floats(0, 0.5)),
    update_s=seconds,
)


stages = st.builds(StageCosts, seconds, seconds, seconds)
# Two and three compute parties, by way of the trusted one.
relayed = st.builds(
    lambda given, some, size, back, trains, relay_s: replace(
        given,
        stages=tuple(some),
        hops=(size,) * (len(some) - 1),
        back_hops=(back,) * (len(some) - 1),
        relayed=True,
        relay_s=relay_s,
        relay_backward_s=relay_s / 2,
        input_gradient=given.input_gradient if trains else None,
        bottom_backward_s=given.bottom_backward_s if trains else 0.0,
    ),
    chains,
    st.lists(stages, min_size=2, max_size=3),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.booleans(),
    seconds,
)


@pytest.mark.parametrize(
    "changes",
    [
        {"stages": ()},
        {"hops": (1,)},
        {"stages": (StageCosts(1), StageCosts(1)), "hops": (1,)},
        {"gradient": None},
        {
            "stages": (StageCosts(1), StageCosts(1)),
            "hops": (1,),
            "back_hops": (1,),
            "staleness": 1,
        },
    ],
)
def test_a_chain_that_cannot_be_is_our_own_mistake(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|right|gradient"):
        chain(**changes)


def test_messages_are_counted_by_the_party_that_they_are_with() -> None:
    two = chain(
        stages=(StageCosts(1), StageCosts(1)), hops=(1,), back_hops=(1,), input_gradient=None
    )
    assert (two.parties, two.messages()) == (1, 3 * 4)
    through_us = replace(two, relayed=True)
    assert through_us.parties == 2
    assert [through_us.messages(party) for party in range(2)] == [3 * 4, 4 * 4]
    features = replace(through_us, gradient=None, back_hops=())
    assert [features.messages(party) for party in range(2)] == [2 * 4, 2 * 4]
