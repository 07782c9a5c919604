"""Stretches of interleaved steps against what any legal order has to satisfy."""

from collections.abc import Iterator
from itertools import count, islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pipeline.schedule import ORDERS, Action, Op
from splitlearn.pipeline.stretch import Turn, interleaved, until_drained

sizes = st.lists(st.integers(1, 6), min_size=1, max_size=8)
ahead = st.integers(1, 4)
windows = st.integers(1, 9)
orders = st.sampled_from(sorted(ORDERS))


@given(counts=sizes, staleness=ahead, w=windows, backward=st.booleans(), order=orders)
def test_each_micro_batch_passes_each_stage_once_in_order_and_each_step_is_applied_when_whole(
    counts: list[int], staleness: int, w: int, backward: bool, order: str
) -> None:
    turns = list(
        interleaved(counts, staleness=staleness, in_flight=w, backward=backward, order=order)
    )
    every = [(step, i) for step, n in enumerate(counts) for i in range(n)]
    for op in Op:
        seen = [(t.step, t.action.micro_batch) for t in turns if t.action and t.action.op is op]
        done = {Op.BOTTOM, Op.TOP} | ({Op.BOTTOM_BACKWARD} if backward else set())
        assert seen == (every if op in done else [])
    assert [t.step for t in turns if t.action is None] == list(range(len(counts)))
    last = Op.BOTTOM_BACKWARD if backward else Op.TOP
    for step, n in enumerate(counts):
        applied = turns.index(Turn(step, None))
        assert turns.index(Turn(step, Action(last, n - 1))) == applied - 1
        if step + staleness + 1 < len(counts):
            later = turns.index(Turn(step + staleness + 1, Action(Op.BOTTOM, 0)))
            assert applied < later
    for step, i in every:
        top = turns.index(Turn(step, Action(Op.TOP, i)))
        assert turns.index(Turn(step, Action(Op.BOTTOM, i))) < top
        if backward:
            assert top < turns.index(Turn(step, Action(Op.BOTTOM_BACKWARD, i)))


@given(counts=sizes, staleness=ahead, w=windows, backward=st.booleans(), order=orders)
def test_no_more_than_the_window_is_in_flight_and_no_more_steps_than_agreed_are_open(
    counts: list[int], staleness: int, w: int, backward: bool, order: str
) -> None:
    in_flight = applied = newest = 0
    for turn in interleaved(
        counts, staleness=staleness, in_flight=w, backward=backward, order=order
    ):
        if turn.action is None:
            applied += 1
            continue
        in_flight += {Op.BOTTOM: 1, Op.TOP: -1}.get(turn.action.op, 0)
        newest = max(newest, turn.step)
        assert in_flight <= w
        assert newest - applied <= staleness


@given(counts=sizes, staleness=ahead, w=windows, order=orders)
def test_no_more_messages_lie_untaken_than_the_channels_window_is_made_for(
    counts: list[int], staleness: int, w: int, order: str
) -> None:
    """Answers come in the order of what was sent; an awaited one takes all before it out."""
    sent: list[tuple[Op, int, int]] = []
    taken = 0
    for turn in interleaved(counts, staleness=staleness, in_flight=w, backward=True, order=order):
        if turn.action is None:
            continue
        op, place = turn.action.op, (turn.step, turn.action.micro_batch)
        asked = {Op.TOP: Op.BOTTOM, Op.BOTTOM_BACKWARD: Op.TOP}.get(op)
        if asked is not None:
            taken = max(taken, sent.index((asked, *place)) + 1)
        if op is not Op.BOTTOM_BACKWARD:
            sent.append((op, *place))
        assert len(sent) - taken <= 2 * w


@given(counts=sizes, staleness=ahead, w=windows)
def test_1f1b_takes_answers_in_the_order_of_what_was_sent(
    counts: list[int], staleness: int, w: int
) -> None:
    sent, taken = [], []
    for turn in interleaved(counts, staleness=staleness, in_flight=w, backward=True, order="1f1b"):
        match turn.action:
            case Action(Op.BOTTOM, i):
                sent.append(("output", turn.step, i))
            case Action(Op.TOP, i):
                taken.append(("output", turn.step, i))
                sent.append(("gradient", turn.step, i))
            case Action(Op.BOTTOM_BACKWARD, i):
                taken.append(("gradient", turn.step, i))
    assert taken == sent


def test_a_step_is_asked_for_no_earlier_than_it_may_begin() -> None:
    asked: list[int] = []

    def counts() -> Iterator[int]:
        for step in range(6):
            asked.append(step)
            yield 2

    turns = interleaved(counts(), staleness=1, in_flight=8, backward=True, order="1f1b")
    assert [t.step for t in islice(turns, 4)] == [0, 0, 1, 1]
    assert asked == [0, 1]


@given(counts=sizes, first=st.integers(0, 20), every=st.integers(1, 10), most=st.integers(1, 60))
def test_a_stretch_ends_at_a_checkpoint_or_before_too_many_messages(
    counts: list[int], first: int, every: int, most: int
) -> None:
    found = list(until_drained(counts, first=first, every=every, kinds=4, most=most))
    assert found == counts[: len(found)]
    assert len(found) == 1 or 4 * sum(found) <= most
    end = first + len(found)
    assert all(step % every for step in range(first + 1, end))
    full = len(found) == len(counts) or end % every == 0
    assert full or 4 * sum(counts[: len(found) + 1]) > most


def test_stretches_of_an_endless_run_follow_each_other_from_any_checkpoint() -> None:
    def ends(first: int) -> list[int]:
        found = [first]
        while found[-1] < 40:
            kwargs = {"first": found[-1], "every": 10, "kinds": 4, "most": 100}
            found.append(found[-1] + len(list(until_drained(repeat(4), **kwargs))))  # type: ignore[arg-type]
        return found

    assert ends(0) == [0, 6, 10, 16, 20, 26, 30, 36, 40]
    assert ends(20) == ends(0)[4:]


def test_a_window_or_a_step_of_nothing_is_our_own_mistake() -> None:
    settings = {"staleness": 1, "backward": True, "order": "1f1b"}
    with pytest.raises(ValueError, match="in_flight"):
        next(interleaved(count(1), in_flight=0, **settings))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 micro-batches"):
        next(interleaved([0], in_flight=1, **settings))  # type: ignore[arg-type]
