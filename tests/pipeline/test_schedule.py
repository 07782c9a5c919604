"""Schedules against what any legal schedule has to satisfy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pipeline.schedule import Action, Op, fill_drain


@given(m=st.integers(0, 40), w=st.integers(1, 50), backward=st.booleans())
def test_each_micro_batch_passes_each_stage_once_and_in_order(
    m: int, w: int, backward: bool
) -> None:
    actions = list(fill_drain(m, in_flight=w, backward=backward))
    for op in Op:
        seen = [a.micro_batch for a in actions if a.op is op]
        wanted = [] if op is Op.BOTTOM_BACKWARD and not backward else list(range(m))
        assert seen == wanted
    for i in range(m):
        assert actions.index(Action(Op.BOTTOM, i)) < actions.index(Action(Op.TOP, i))


@given(m=st.integers(1, 40), w=st.integers(1, 50))
def test_no_more_than_the_window_is_in_flight(m: int, w: int) -> None:
    in_flight = most = 0
    for action in fill_drain(m, in_flight=w, backward=False):
        in_flight += {Op.BOTTOM: 1, Op.TOP: -1}[action.op]
        most = max(most, in_flight)
    assert most == min(m, w)


def test_a_window_of_nothing_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="in_flight"):
        next(fill_drain(1, in_flight=0, backward=False))
