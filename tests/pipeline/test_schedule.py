"""Schedules against what any legal schedule has to satisfy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.channel.mailbox import DEFAULT_WINDOW
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
    parties=st.integers(1, 5),
    gradients=st.booleans(),
    backward=st.booleans(),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_each_micro_batch_passes_each_stage_once_and_in_order(
    m: int, w: int, parties: int, gradients: bool, backward: bool, order: str
) -> None:
    actions = list(
        ORDERS[order](m, in_flight=w, backward=backward, parties=parties, gradients=gradients)
    )
    relays = range(1, parties)
    passes = [(Op.BOTTOM, 0), *((Op.RELAY, party) for party in relays), (Op.TOP, 0)]
    if gradients or backward:
        passes += [(Op.RELAY_BACKWARD, party) for party in reversed(relays)]
    if backward:
        passes += [(Op.BOTTOM_BACKWARD, 0)]
    for op, party in passes:
        seen = [a.micro_batch for a in actions if (a.op, a.party) == (op, party)]
        assert seen == list(range(m))
    assert len(actions) == m * len(passes)
    for i in range(m):
        places = [actions.index(Action(op, i, party)) for op, party in passes]
        assert places == sorted(places)


# Of each action: which of the parties it waits for, and which it sends something to.
def ends(action: Action, *, parties: int, gradients: bool) -> tuple[int | None, int | None]:
    match action.op:
        case Op.BOTTOM:
            return None, 0
        case Op.RELAY:
            return action.party - 1, action.party
        case Op.TOP:
            return parties - 1, parties - 1 if gradients else None
        case Op.RELAY_BACKWARD:
            return action.party, action.party - 1
    return 0, None


@given(
    m=st.integers(1, 40),
    w=st.integers(1, 20),
    parties=st.integers(1, 5),
    backward=st.booleans(),
)
def test_a_backward_waits_for_nothing_that_was_not_awaited_anyway_while_there_is_more_to_send(
    m: int, w: int, parties: int, backward: bool
) -> None:
    actions = one_forward_one_backward(
        m, in_flight=w, backward=backward, parties=parties, gradients=True
    )
    sent: list[list[tuple[bool, int]]] = [[] for _ in range(parties)]
    answered = [-1] * parties
    for action in actions:
        waits, sends = ends(action, parties=parties, gradients=True)
        late = action.op in {Op.RELAY_BACKWARD, Op.BOTTOM_BACKWARD}
        if waits is not None:
            place = sent[waits].index((late, action.micro_batch))
            if late and any(not gradient for gradient, _ in sent[waits][place:]):
                assert place < answered[waits]
            answered[waits] = max(answered[waits], place)
        if sends is not None:
            goes_back = late or action.op is Op.TOP
            sent[sends].append((goes_back, action.micro_batch))


@given(
    m=st.integers(1, 60),
    w=st.integers(1, 16),
    parties=st.integers(1, 5),
    backward=st.booleans(),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_no_party_is_owed_more_than_the_credit_that_a_channel_gives(
    m: int, w: int, parties: int, backward: bool, order: str
) -> None:
    """Else both could wait for the other to take something. An answer counts until one after it came."""
    actions = ORDERS[order](m, in_flight=w, backward=backward, parties=parties, gradients=True)
    sent: list[list[tuple[bool, int]]] = [[] for _ in range(parties)]
    taken = [0] * parties
    for action in actions:
        waits, sends = ends(action, parties=parties, gradients=True)
        late = action.op in {Op.RELAY_BACKWARD, Op.BOTTOM_BACKWARD}
        if waits is not None:
            taken[waits] = max(taken[waits], 1 + sent[waits].index((late, action.micro_batch)))
        if sends is not None:
            sent[sends].append((late or action.op is Op.TOP, action.micro_batch))
        for party in range(parties):
            # No input gradient is owed where none is asked for.
            owed = [
                message
                for message in sent[party][taken[party] :]
                if backward or party or not message[0]
            ]
            assert len(owed) <= DEFAULT_WINDOW


@given(
    m=st.integers(1, 40),
    w=st.integers(1, 50),
    parties=st.integers(1, 5),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_no_more_than_the_window_is_in_flight(m: int, w: int, parties: int, order: str) -> None:
    in_flight = most = 0
    for action in ORDERS[order](m, in_flight=w, backward=False, parties=parties):
        in_flight += {Op.BOTTOM: 1, Op.TOP: -1}.get(action.op, 0)
        most = max(most, in_flight)
    assert most == min(m, w)


@given(m=st.integers(1, 60), w=st.integers(1, 20), parties=st.integers(1, 5))
def test_one_forward_one_backward_holds_no_more_graphs_than_its_window_asks_for(
    m: int, w: int, parties: int
) -> None:
    live = most = 0
    for action in one_forward_one_backward(m, in_flight=w, backward=True, parties=parties):
        live += {Op.BOTTOM: 1, Op.BOTTOM_BACKWARD: -1}.get(action.op, 0)
        most = max(most, live)
    assert (live, most) == (0, min(m, 2 * w + parties))


@given(m=st.integers(1, 30), w=st.integers(1, 16), order=st.sampled_from(sorted(ORDERS)))
def test_a_chain_keeps_every_party_at_work(m: int, w: int, order: str) -> None:
    """Of a window of two or more, two parties have a micro-batch each as long as there are enough."""
    sent, done = [0, 0], 0
    for action in ORDERS[order](m, in_flight=w, backward=False, parties=2):
        if action.op is Op.TOP:
            done += 1
            if w >= 2 and done + w <= m:
                assert sent[1] - done >= w // 2
        else:
            sent[action.party] += 1


def test_a_window_of_nothing_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="in_flight"):
        next(fill_drain(1, in_flight=0, backward=False))


def test_a_chain_of_nobody_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="0 compute parties"):
        next(one_forward_one_backward(1, in_flight=1, backward=False, parties=0))
