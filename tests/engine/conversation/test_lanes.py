import threading
from collections.abc import Iterator

import pytest

from splitlearn.channel import PeerRestarted, Released, pair
from splitlearn.channel.memory import MemoryChannel
from splitlearn.engine.conversation.lanes import BridgeLost, Lane, Lanes
from splitlearn.errors import ChannelError, PeerError
from splitlearn.roles import Kind
from splitlearn.wire import frames
from splitlearn.wire.messages import Step

Ends = tuple[MemoryChannel, Lane, Lanes]


def word(seq: int) -> Released:
    return Released(
        kind=Kind.SAVED, seq=seq, raw=frames.encode(Kind.SAVED, seq=seq, meta=Step(seq))
    )


def opened(*, neighbour: bool) -> Iterator[Ends]:
    lanes = Lanes()
    ours, theirs = pair(names=("farm", "host"))
    lane = Lane(theirs, lanes=lanes, neighbour=neighbour)
    yield ours, lane, lanes
    lane.stop()


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield from opened(neighbour=False)


@pytest.fixture
def beside() -> Iterator[Ends]:
    yield from opened(neighbour=True)


def told(lanes: Lanes, count: int = 0) -> None:
    assert lanes.wait(count=count, timeout_s=20)


def test_the_next_frame_is_known_before_it_is_taken(ends: Ends) -> None:
    ours, lane, lanes = ends
    assert lane.next() is None
    for seq in (1, 2):
        ours.send(word(seq), deadline_s=1)
        told(lanes, seq - 1)
    first = lane.next()
    assert first is lane.next()
    assert first is lane.receive(timeout_s=1)
    assert lane.receive(timeout_s=1).seq == 2
    with pytest.raises(ChannelError, match="farm sent nothing for 0 s"):
        lane.receive(timeout_s=0)


def test_whoever_waits_for_any_lane_is_woken_by_each(ends: Ends) -> None:
    ours, _, lanes = ends
    other, theirs = pair(names=("barn", "host"))
    second = Lane(theirs, lanes=lanes)
    for number, channel in enumerate((ours, other)):
        waiting = threading.Thread(target=told, args=(lanes, number))
        waiting.start()
        channel.send(word(1), deadline_s=1)
        waiting.join(20)
        assert not waiting.is_alive()
    assert not lanes.wait(count=2, timeout_s=0)
    second.stop()


def test_a_peer_that_is_gone_is_noticed_though_a_word_of_it_waits(ends: Ends) -> None:
    ours, lane, lanes = ends
    ours.send(word(1), deadline_s=1)
    told(lanes)
    ours.restart()
    told(lanes, 1)
    with pytest.raises(PeerRestarted):
        lane.next()
    with pytest.raises(PeerRestarted):
        lane.receive(timeout_s=20)


def test_after_a_good_end_what_came_before_is_still_there(beside: Ends) -> None:
    ours, lane, lanes = beside
    ours.send(word(1), deadline_s=1)
    ours.close()
    told(lanes, 1)
    assert lane.next() is not None
    assert lane.receive(timeout_s=1).seq == 1
    with pytest.raises(BridgeLost, match="the hop to farm is lost: farm closed the channel"):
        lane.receive(timeout_s=20)
    assert lane.over


@pytest.mark.parametrize("how", ["restarted", "aborted"])
def test_whatever_ends_a_neighbour_is_a_lost_hop(beside: Ends, how: str) -> None:
    ours, lane, lanes = beside
    if how == "restarted":
        ours.restart()
    else:
        ours.close(reason="you lied")
    told(lanes)
    with pytest.raises(BridgeLost, match="new process" if how == "restarted" else "you lied"):
        lane.next()
    with pytest.raises(BridgeLost):
        lane.send(word(1), deadline_s=1)


def test_of_any_other_peer_an_end_is_told_as_it_is(ends: Ends) -> None:
    ours, lane, lanes = ends
    ours.close(reason="you lied")
    told(lanes)
    with pytest.raises(PeerError, match="you lied") as caught:
        lane.next()
    assert not isinstance(caught.value, BridgeLost)


def test_from_the_stop_on_the_channel_is_its_owners_again() -> None:
    ours, theirs = pair()
    lane = Lane(theirs, lanes=Lanes())
    lane.stop()
    ours.send(word(1), deadline_s=1)
    assert theirs.receive(timeout_s=1).seq == 1
    assert lane.next() is None


def test_it_is_a_channel(ends: Ends) -> None:
    ours, lane, _ = ends
    lane.send(word(1), deadline_s=1)
    assert ours.receive(timeout_s=1).seq == 1
    assert (lane.peer, lane.over) == ("farm", False)
    assert lane.bytes_sent == ours.bytes_received > 0
    assert lane.bytes_received == ours.bytes_sent
    lane.renew()
    lane.close(reason="enough")
    with pytest.raises(PeerError, match="enough"):
        ours.receive(timeout_s=1)
