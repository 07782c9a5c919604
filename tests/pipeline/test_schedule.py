"""Schedules against what any legal schedule has to satisfy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pipeline.schedule import (
    ORDERS,
    Action,
    Op,
    fill_drain,
    one_forward_one_backward,
)


@given(
    m=st.integers(0, 40),
    w=st.integers(1, 50),
    backward=st.booleans(),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_each_micro_batch_passes_each_stage_once_and_in_order(
    m: int, w: int, backward: bool, order: str
) -> None:
    actions = list(ORDERS[order](m, in_flight=w, backward=backward))
    for op in Op:
        seen = [a.micro_batch for a in actions if a.op is op]
        wanted = [] if op is Op.BOTTOM_BACKWARD and not backward else list(range(m))
        assert seen == wanted
    for i in range(m):
        top = actions.index(Action(Op.TOP, i))
        assert actions.index(Action(Op.BOTTOM, i)) < top
        assert not backward or top < actions.index(Action(Op.BOTTOM_BACKWARD, i))


@given(m=st.integers(1, 40), w=st.integers(1, 50), order=st.sampled_from(sorted(ORDERS)))
def test_no_more_than_the_window_is_in_flight(m: int, w: int, order: str) -> None:
    in_flight = most = 0
    for action in ORDERS[order](m, in_flight=w, backward=False):
        in_flight += {Op.BOTTOM: 1, Op.TOP: -1}[action.op]
        most = max(most, in_flight)
    assert most == min(m, w)


@given(m=st.integers(1, 60), w=st.integers(1, 20))
def test_one_forward_one_backward_holds_no_more_graphs_than_its_window_asks_for(
    m: int, w: int
) -> None:
    live = most = 0
    for action in one_forward_one_backward(m, in_flight=w, backward=True):
        live += {Op.BOTTOM: 1, Op.TOP: 0, Op.BOTTOM_BACKWARD: -1}[action.op]
        most = max(most, live)
    assert (live, most) == (0, min(m, 2 * w + 1))


def test_a_window_of_nothing_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="in_flight"):
        next(fill_drain(1, in_flight=0, backward=False))
