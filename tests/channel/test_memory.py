"""The channel in memory behaves as the real one."""

import threading
from collections.abc import Callable

import pytest

from splitlearn.channel import PeerRestarted, Released, pair
from splitlearn.errors import ChannelError, PeerError

Message = Callable[..., Released]


def test_messages_cross_in_order_and_are_counted(message: Message) -> None:
    trusted, compute = pair()
    for seq in range(3):
        trusted.send(message(seq, size=300_000), deadline_s=1)
    frames = [compute.receive(timeout_s=1) for _ in range(3)]
    assert [frame.seq for frame in frames] == [0, 1, 2]
    assert frames[2].raw == message(2, size=300_000).raw
    assert trusted.bytes_sent == compute.bytes_received > 900_000


def test_credit_is_given_back_by_taking(message: Message) -> None:
    trusted, compute = pair(window=1)
    trusted.send(message(0), deadline_s=0)
    with pytest.raises(ChannelError, match="took none of 1 frames"):
        trusted.send(message(1), deadline_s=0)
    compute.receive(timeout_s=0)
    trusted.send(message(1), deadline_s=0)


def test_a_waiting_end_is_woken_from_another_thread(message: Message) -> None:
    trusted, compute = pair()
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(compute.receive(timeout_s=20).seq))
    waiting.start()
    trusted.send(message(4), deadline_s=1)
    waiting.join()
    assert seen == [4]


def test_what_is_sent_during_a_cut_arrives_after_it(message: Message) -> None:
    trusted, compute = pair()
    trusted.send(message(0), deadline_s=0)
    trusted.cut()
    trusted.send(message(1), deadline_s=0)
    assert compute.receive(timeout_s=0).seq == 0
    with pytest.raises(ChannelError, match="cut by the test"):
        compute.receive(timeout_s=0)
    trusted.heal()
    assert compute.receive(timeout_s=0).seq == 1


def test_a_restart_is_told_to_the_survivor(message: Message) -> None:
    trusted, compute = pair()
    trusted.send(message(0), deadline_s=0)
    again = compute.restart()
    with pytest.raises(ChannelError, match="killed"):
        compute.receive(timeout_s=0)
    with pytest.raises(PeerRestarted):
        trusted.receive(timeout_s=0)
    trusted.renew()
    trusted.send(message(0), deadline_s=0)
    assert again.receive(timeout_s=0).seq == 0
    again.send(message(0), deadline_s=0)
    assert trusted.receive(timeout_s=0).seq == 0


def test_a_good_close_delivers_what_was_sent(message: Message) -> None:
    trusted, compute = pair()
    trusted.send(message(0), deadline_s=0)
    trusted.close()
    trusted.close()
    assert compute.receive(timeout_s=0).seq == 0
    with pytest.raises(ChannelError, match="closed the channel"):
        compute.receive(timeout_s=0)
    with pytest.raises(ChannelError, match="on this side"):
        trusted.send(message(1), deadline_s=0)


def test_a_reason_is_quoted_at_the_other_end() -> None:
    trusted, compute = pair()
    trusted.close(reason="the disk is\nfull")
    with pytest.raises(PeerError, match=r"trusted says: the disk is\?full"):
        compute.receive(timeout_s=0)


def test_a_close_during_a_cut_reaches_nobody() -> None:
    trusted, compute = pair()
    trusted.cut()
    trusted.close(reason="nobody hears this")
    with pytest.raises(ChannelError, match="sent nothing"):
        compute.receive(timeout_s=0)


def test_healing_after_a_close_changes_nothing() -> None:
    trusted, compute = pair()
    trusted.close()
    trusted.heal()
    with pytest.raises(ChannelError, match="closed the channel"):
        compute.receive(timeout_s=0)
