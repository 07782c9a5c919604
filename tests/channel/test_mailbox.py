"""Sequence, credit and resend state, with the link played by the test."""

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from splitlearn.channel import PeerRestarted, Released
from splitlearn.channel.mailbox import Mailbox
from splitlearn.errors import ChannelError, PeerError, SplitLearnError, WireError
from splitlearn.roles import Kind
from splitlearn.wire import frames
from splitlearn.wire.messages import Empty

Message = Callable[..., Released]
NOW_S = 0.0


def nothing() -> None:
    pass


def make(window: int = 2) -> Mailbox:
    box = Mailbox("compute.beta", window=window, on_frame=nothing, on_ack=nothing)
    box.attach(received=0, window=window)
    return box


def ready(seq: int) -> Released:
    raw = frames.encode(Kind.READY, seq=seq, meta=Empty())
    return Released(kind=Kind.READY, seq=seq, raw=raw)


def put(box: Mailbox, *seqs: int) -> None:
    for seq in seqs:
        box.put(ready(seq), deadline_s=NOW_S)


def written(box: Mailbox) -> list[int]:
    out = []
    while (raw := box.next_frame()) is not None:
        out.append(frames.decode(raw).seq)
    return out


def deliver(box: Mailbox, *seqs: int) -> None:
    for seq in seqs:
        box.arrive(frames.decode(ready(seq).raw))


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run a blocking call elsewhere; its result, or what it raised, lands in the list."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(call())
        except SplitLearnError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_frames_are_written_once_and_in_order() -> None:
    box = make()
    put(box, 5, 6)
    assert written(box) == [5, 6]
    assert written(box) == []


def test_a_sender_without_credit_waits_and_then_says_what_it_waited_for() -> None:
    box = make(window=2)
    put(box, 0, 1)
    with pytest.raises(ChannelError, match=r"compute\.beta took none of 2 frames.*ready 2"):
        put(box, 2)


def test_credit_comes_back_when_the_peer_has_taken_a_frame() -> None:
    box = make(window=1)
    put(box, 0)
    assert written(box) == [0]
    thread, result = in_thread(lambda: box.put(ready(1), deadline_s=20))
    box.acked(1)
    thread.join()
    assert result == [None]
    assert written(box) == [1]


def test_a_smaller_window_of_the_peer_counts() -> None:
    box = make(window=8)
    box.attach(received=0, window=1)
    put(box, 0)
    with pytest.raises(ChannelError):
        put(box, 1)


def test_a_new_link_resends_from_where_the_peer_is() -> None:
    box = make(window=8)
    put(box, 0, 1, 2, 3)
    assert written(box) == [0, 1, 2, 3]
    box.acked(1)
    box.detach("cut")
    box.attach(received=2, window=8)
    assert written(box) == [2, 3]


@pytest.mark.parametrize("received", [0, 4])
def test_a_peer_that_lost_its_place_is_refused(received: int) -> None:
    box = make(window=8)
    put(box, 0, 1, 2)
    written(box)
    box.acked(1)
    with pytest.raises(WireError, match="expected 1 to 3"):
        box.attach(received=received, window=8)


@pytest.mark.parametrize("taken", [0, 3])
def test_an_impossible_acknowledgement_is_a_wire_error(taken: int) -> None:
    box = make(window=8)
    put(box, 0, 1, 2)
    box.next_frame()
    box.next_frame()
    box.acked(1)
    with pytest.raises(WireError, match="miscounts"):
        box.acked(taken)


def test_an_acknowledgement_that_crosses_a_failure_changes_nothing() -> None:
    """Or the link breaks on it before it has told the peer why."""
    box = make()
    put(box, 0, 1)
    assert written(box) == [0, 1]
    box.fail(WireError("the peer broke a rule"))
    box.acked(1)
    box.acked(2)
    with pytest.raises(WireError, match="broke a rule"):
        put(box, 2)


def test_received_frames_are_taken_in_order() -> None:
    box = make()
    deliver(box, 7, 8)
    assert [box.take(timeout_s=NOW_S).seq for _ in range(2)] == [7, 8]


def test_silence_is_told_with_the_state_of_the_link() -> None:
    box = make()
    with pytest.raises(ChannelError, match=r"compute\.beta sent nothing for 0 s; the link is up"):
        box.take(timeout_s=NOW_S)
    box.detach("Socket closed")
    with pytest.raises(ChannelError, match="the link is down: Socket closed"):
        box.take(timeout_s=NOW_S)


def test_a_waiting_receiver_gets_what_comes() -> None:
    box = make()
    thread, result = in_thread(lambda: box.take(timeout_s=20).seq)
    deliver(box, 3)
    thread.join()
    assert result == [3]


def test_a_peer_that_ignores_its_credit_is_a_wire_error() -> None:
    box = make(window=2)
    deliver(box, 0, 1)
    with pytest.raises(WireError, match="ignores its credit"):
        deliver(box, 2)


def test_acknowledgements_are_asked_for_at_half_of_the_window_and_count_takes() -> None:
    asked: list[int] = []
    box = Mailbox("p", window=4, on_frame=nothing, on_ack=lambda: asked.append(1))
    deliver(box, 0, 1)
    box.take(timeout_s=NOW_S)
    assert asked == []
    box.take(timeout_s=NOW_S)
    assert asked == [1]
    assert box.ack() == 2
    assert box.ack() is None
    assert box.ack(again=True) == 2


def test_a_late_acknowledgement_is_asked_for_at_the_next_take() -> None:
    asked: list[int] = []
    box = Mailbox("p", window=8, on_frame=nothing, on_ack=lambda: asked.append(1))
    deliver(box, 0)
    assert not box.ack_soon()
    box.take(timeout_s=NOW_S)
    assert asked == [1]
    assert box.ack_soon()


def test_a_restart_is_told_until_somebody_renews_and_leaves_a_fresh_mailbox() -> None:
    box = make()
    put(box, 0)
    deliver(box, 0)
    box.restart()
    for _ in range(2):
        with pytest.raises(PeerRestarted, match="new process"):
            box.take(timeout_s=NOW_S)
        with pytest.raises(PeerRestarted, match="new process"):
            put(box, 1)
    assert box.received == 0
    box.attach(received=0, window=2)
    box.renew()
    put(box, 40)
    assert written(box) == [40]
    deliver(box, 50)
    assert box.take(timeout_s=NOW_S).seq == 50


def test_a_restart_reaches_the_sender_before_it_sends_into_the_new_session() -> None:
    box = make()
    box.restart()
    with pytest.raises(PeerRestarted):
        put(box, 0)
    assert written(box) == []


def test_a_restart_wakes_everybody_who_waits() -> None:
    box = make(window=1)
    put(box, 0)
    sender, sent = in_thread(lambda: box.put(ready(1), deadline_s=20))
    receiver, received = in_thread(lambda: box.take(timeout_s=20))
    while len(box._room._waiters) + len(box._news._waiters) < 2:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)
    box.restart()
    sender.join()
    receiver.join()
    assert isinstance(sent[0], PeerRestarted)
    assert isinstance(received[0], PeerRestarted)
    box.renew()
    with pytest.raises(ChannelError, match="sent nothing"):
        box.take(timeout_s=NOW_S)


def test_what_comes_from_the_new_process_before_it_is_known_is_not_lost() -> None:
    box = make()
    box.restart()
    box.attach(received=0, window=2)
    deliver(box, 3)
    with pytest.raises(PeerRestarted):
        box.take(timeout_s=NOW_S)
    box.renew()
    assert box.take(timeout_s=NOW_S).seq == 3


def test_after_a_good_end_what_came_can_be_taken_and_nothing_put() -> None:
    box = make()
    deliver(box, 1)
    box.end()
    deliver(box, 2)
    assert box.over
    assert box.take(timeout_s=NOW_S).seq == 1
    with pytest.raises(ChannelError, match="closed the channel"):
        box.take(timeout_s=NOW_S)
    with pytest.raises(ChannelError, match="ready 3 was not sent"):
        put(box, 3)


def test_a_failure_is_raised_by_every_later_call_with_its_own_kind() -> None:
    box = make()
    deliver(box, 1)
    box.fail(PeerError("compute.beta says: no"))
    box.fail(ChannelError("later"))
    for _ in range(2):
        with pytest.raises(PeerError, match="says: no"):
            box.take(timeout_s=NOW_S)
        with pytest.raises(PeerError, match="says: no"):
            put(box, 1)
    deliver(box, 2)
    assert box.over


def test_draining_ends_when_all_is_taken_or_the_time_is_up() -> None:
    box = make()
    assert box.drain(timeout_s=NOW_S)
    put(box, 0)
    written(box)
    assert not box.drain(timeout_s=NOW_S)
    thread, result = in_thread(lambda: box.drain(timeout_s=20))
    box.acked(1)
    thread.join()
    assert result == [True]


def test_a_window_out_of_bounds_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="1 to 256"):
        make(window=0)


def test_untouched_means_that_nothing_was_exchanged() -> None:
    box = make()
    assert box.untouched
    put(box, 0)
    written(box)
    assert box.untouched
    box.acked(1)
    assert not box.untouched


class TwoEnds(RuleBasedStateMachine):
    """Two mailboxes and a link that breaks at any frame: each message arrives once and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.left = make(window=3)
        self.right = make(window=3)
        self.sent = 0
        self.taken: list[int] = []

    @rule()
    def send(self) -> None:
        try:
            put(self.left, self.sent)
        except ChannelError:
            return
        self.sent += 1

    @rule()
    def carry(self) -> None:
        raw = self.left.next_frame()
        if raw is not None:
            self.right.arrive(frames.decode(raw))

    @rule()
    def lose(self) -> None:
        self.left.next_frame()
        self.reconnect()

    @rule()
    def reconnect(self) -> None:
        self.left.detach("cut")
        self.left.attach(received=self.right.received, window=3)

    @rule()
    def take(self) -> None:
        try:
            self.taken.append(self.right.take(timeout_s=NOW_S).seq)
        except ChannelError:
            return

    @rule(again=st.booleans())
    def acknowledge(self, again: bool) -> None:
        taken = self.right.ack(again=again)
        if taken is not None:
            self.left.acked(taken)

    @rule()
    def lose_acknowledgement(self) -> None:
        self.right.ack()
        self.reconnect()
        self.acknowledge(again=True)

    @invariant()
    def once_and_in_order(self) -> None:
        assert self.taken == list(range(len(self.taken)))


TestTwoEnds = TwoEnds.TestCase


@given(st.integers(1, 16), st.integers(1, 16))
def test_never_more_frames_under_way_than_either_window(mine: int, theirs: int) -> None:
    box = make(window=mine)
    box.attach(received=0, window=theirs)
    put(box, *range(min(mine, theirs)))
    with pytest.raises(ChannelError):
        put(box, 99)
