"""What an engine sees of a channel over real TLS: order, credit, deadlines, closing."""

import threading
import time
from collections.abc import Callable

import pytest

from splitlearn.channel import Conversation, Released
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.errors import ChannelError, PeerError

Message = Callable[..., Released]
Ends = tuple[Conversation, Conversation]
WAIT_S = 20.0


def test_both_ends_know_one_another_by_certificate(ends: Ends) -> None:
    dialled, accepted = ends
    assert dialled.peer == "compute.beta.fed.example"
    assert accepted.peer == "trusted.alpha.fed.example"
    assert dialled.run == accepted.run == "demo"
    assert dialled.authorised is not None
    assert accepted.authorised is not None
    assert dialled.authorised.name.party == "beta"
    assert accepted.authorised.name.party == "alpha"


def test_frames_of_every_size_cross_in_both_directions_at_once(
    ends: Ends, message: Message
) -> None:
    sizes = [0, 1, 262_000, 262_144, 300_000, 3_000_000]

    def talk(end: Conversation, taken: list[bytes]) -> None:
        for seq, size in enumerate(sizes):
            end.send(message(seq, size=size), deadline_s=WAIT_S)
        taken.extend(end.receive(timeout_s=WAIT_S).raw for _ in sizes)

    here: list[bytes] = []
    there: list[bytes] = []
    other = threading.Thread(target=talk, args=(ends[1], there))
    other.start()
    talk(ends[0], here)
    other.join()
    assert here == there == [message(seq, size=size).raw for seq, size in enumerate(sizes)]


def test_every_byte_of_a_frame_is_counted_on_both_sides(ends: Ends, message: Message) -> None:
    released = message(0, size=1_000_000)
    ends[0].send(released, deadline_s=WAIT_S)
    ends[1].receive(timeout_s=WAIT_S)
    assert ends[0].bytes_sent > len(released.raw)
    assert ends[1].bytes_received > len(released.raw)


def test_credit_stops_a_sender_whose_peer_takes_nothing(ends: Ends, message: Message) -> None:
    for seq in range(DEFAULT_WINDOW):
        ends[0].send(message(seq), deadline_s=WAIT_S)
    with pytest.raises(ChannelError, match=f"took none of {DEFAULT_WINDOW} frames"):
        ends[0].send(message(DEFAULT_WINDOW), deadline_s=0.05)
    for seq in range(DEFAULT_WINDOW):
        assert ends[1].receive(timeout_s=WAIT_S).seq == seq
    ends[0].send(message(DEFAULT_WINDOW), deadline_s=WAIT_S)
    assert ends[1].receive(timeout_s=WAIT_S).seq == DEFAULT_WINDOW


def test_a_silent_peer_is_a_channel_error_at_the_deadline_that_names_it(ends: Ends) -> None:
    with pytest.raises(ChannelError, match=r"compute\.beta\.fed\.example sent nothing for 0\.1 s"):
        ends[0].receive(timeout_s=0.1)


@pytest.mark.parametrize("closer", [0, 1], ids=["the dialler", "the listener"])
def test_a_good_close_by_either_side_first_delivers_what_was_sent(
    ends: Ends, message: Message, closer: int
) -> None:
    """The last word of a run is often followed at once by the end of the process."""
    taken: list[int] = []

    def take() -> None:
        taken.extend(ends[1 - closer].receive(timeout_s=WAIT_S).seq for _ in range(5))

    taking = threading.Thread(target=take)
    taking.start()
    for seq in range(5):
        ends[closer].send(message(seq, size=500_000), deadline_s=WAIT_S)
    ends[closer].close()
    taking.join()
    assert taken == [0, 1, 2, 3, 4]
    with pytest.raises(ChannelError, match="closed the channel"):
        ends[1 - closer].receive(timeout_s=WAIT_S)
    with pytest.raises(ChannelError, match="on this side"):
        ends[closer].send(message(5), deadline_s=WAIT_S)


@pytest.mark.parametrize("closer", [0, 1], ids=["the dialler", "the listener"])
def test_a_reason_is_quoted_by_the_peers_waiting_call(ends: Ends, closer: int) -> None:
    told: list[Exception] = []

    def wait() -> None:
        try:
            ends[1 - closer].receive(timeout_s=WAIT_S)
        except PeerError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ends[closer].close(reason="policy: rule R7 refused a payload")
    waiting.join()
    assert str(told[0]).endswith("says: policy: rule R7 refused a payload")
    with pytest.raises(PeerError, match="rule R7"):
        ends[1 - closer].receive(timeout_s=WAIT_S)


def test_a_close_wakes_our_own_waiting_call(ends: Ends) -> None:
    told: list[Exception] = []

    def wait() -> None:
        try:
            ends[0].receive(timeout_s=WAIT_S)
        except ChannelError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ends[0].close()
    waiting.join()
    assert len(told) == 1


def test_both_may_close_at_the_same_time(ends: Ends) -> None:
    closing = [threading.Thread(target=end.close) for end in ends]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_close_is_bounded_though_the_peer_takes_nothing(ends: Ends, message: Message) -> None:
    ends[0].send(message(0), deadline_s=WAIT_S)
    closing = threading.Thread(target=ends[0].close)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert ends[1].receive(timeout_s=WAIT_S).seq == 0


def test_an_idle_acknowledgement_comes_without_a_further_frame(
    ends: Ends, message: Message
) -> None:
    """So that a sender does not keep its last frame, and a close does not linger, for nothing."""
    ends[0].send(message(0), deadline_s=WAIT_S)
    ends[1].receive(timeout_s=WAIT_S)
    assert ends[0].mailbox.drain(timeout_s=WAIT_S)


def test_threads_may_send_and_receive_at_once_for_long(ends: Ends, message: Message) -> None:
    count = 300
    out = [message(seq, size=2_000) for seq in range(count)]

    def echo() -> None:
        for _ in range(count):
            frame = ends[1].receive(timeout_s=WAIT_S)
            ends[1].send(Released(kind=frame.kind, seq=frame.seq, raw=frame.raw), deadline_s=WAIT_S)

    def send() -> None:
        for released in out:
            ends[0].send(released, deadline_s=WAIT_S)

    threads = [threading.Thread(target=echo), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    back = [ends[0].receive(timeout_s=WAIT_S).raw for _ in range(count)]
    for thread in threads:
        thread.join()
    assert back == [released.raw for released in out]


def test_closing_a_dead_conversation_takes_no_time(ends: Ends) -> None:
    ends[0].close(reason="enough")
    with pytest.raises(PeerError):
        ends[1].receive(timeout_s=WAIT_S)
    began = time.monotonic()
    ends[1].close()
    ends[1].close()
    assert time.monotonic() - began < WAIT_S / 2


def test_closing_when_the_loop_is_gone_raises_nothing(ends: Ends) -> None:
    ends[0]._loop.close()
    ends[0].close(reason="too late")


def test_the_link_is_probed_from_either_end_beside_the_frames(ends: Ends, message: Message) -> None:
    for i, end in enumerate(ends):
        end.send(message(0, size=1000), deadline_s=WAIT_S)
        times = end.probe([(0, 0), (10_000, 0), (0, 10_000)], deadline_s=WAIT_S)
        assert times == sorted(times)
        assert len(times) == 3
        assert ends[1 - i].receive(timeout_s=WAIT_S).seq == 0


def test_a_closed_channel_has_no_link_to_probe(ends: Ends) -> None:
    ends[0].close()
    with pytest.raises(ChannelError):
        ends[0].probe([(0, 0)], deadline_s=WAIT_S)
