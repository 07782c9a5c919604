"""Which conversation a HELLO belongs to, decided without a network."""

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from splitlearn.channel import Conversation, PeerRestarted, handshake
from splitlearn.channel.handshake import Hello
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.reception import Admission, Reception, RefusalError, Seat
from splitlearn.errors import ChannelError
from splitlearn.identity import Identity, Peer
from splitlearn.roles import Role

LISTENER = "f" * 32
FIRST, SECOND = "1" * 32, "2" * 32
NOW_S = 0.0
WAIT_S = 20.0


class Desk:
    """A reception whose conversations have no link, and what came of asking it."""

    def __init__(self, trusted: Identity, compute: Identity) -> None:
        self.loop = LoopThread("desk")
        self.own = compute
        self.trusted = trusted
        self.peer = Peer(
            trusted.name, trusted.fingerprint, 1, bytes(32), trusted.certificate.not_valid_after_utc
        )
        self.reception = Reception(LISTENER, run="", new=self.new)

    def new(self, hello: Hello, peer: Peer) -> Seat:
        conversation = Conversation(
            peer.name, run=hello.run, window=4, loop=self.loop, on_close=lambda _: None
        )
        return Seat(conversation, hello.incarnation)

    def hello(self, **changes: object) -> Hello:
        values: dict[str, object] = {
            "federation": self.trusted.name.federation,
            "party": self.trusted.name.party,
            "role": self.trusted.name.role,
            "expects": self.own.name.uri,
            "run": "demo",
            "incarnation": FIRST,
            "listener": "",
            "received": 0,
            "window": 4,
            "nonce": bytes(16),
        }
        return Hello(**{**values, **changes})  # type: ignore[arg-type]

    def admit(self, **changes: object) -> Seat:
        return asyncio.run(self.reception.admit(self.hello(**changes), peer=self.peer))


@pytest.fixture
def desk(trusted: Identity, compute: Identity) -> Iterator[Desk]:
    made = Desk(trusted, compute)
    yield made
    made.loop.close()


def test_a_first_hello_begins_a_conversation(desk: Desk) -> None:
    seat = desk.admit()
    assert desk.reception.holds(seat)
    assert desk.reception.seats() == [seat]
    assert seat.conversation.authorised == desk.peer


def test_a_redial_of_the_same_process_goes_on(desk: Desk) -> None:
    seat = desk.admit()
    seat.accepted = True
    assert desk.admit(listener=LISTENER) is seat
    with pytest.raises(ChannelError, match="sent nothing"):
        seat.conversation.receive(timeout_s=NOW_S)


def test_a_first_hello_may_come_twice_if_our_ack_was_lost(desk: Desk) -> None:
    assert desk.admit() is desk.admit()


def test_a_first_hello_after_our_ack_arrived_is_a_restart(desk: Desk) -> None:
    seat = desk.admit()
    seat.accepted = True
    desk.admit(listener=LISTENER)
    assert desk.admit() is seat
    with pytest.raises(PeerRestarted):
        seat.conversation.receive(timeout_s=NOW_S)


def test_a_new_process_goes_on_with_the_accepted_conversation_and_is_told(desk: Desk) -> None:
    seat = desk.admit()
    seat.accepted = True
    assert desk.admit(incarnation=SECOND) is seat
    with pytest.raises(PeerRestarted):
        seat.conversation.receive(timeout_s=NOW_S)


def test_a_new_process_for_another_run_begins_another_conversation(desk: Desk) -> None:
    seat = desk.admit()
    seat.accepted = True
    other = desk.admit(incarnation=SECOND, run="other")
    assert other is not seat
    assert not desk.reception.holds(seat)
    with pytest.raises(ChannelError, match="another conversation"):
        seat.conversation.receive(timeout_s=NOW_S)


def test_a_superseded_process_does_not_come_back(desk: Desk) -> None:
    """Two processes of one party would otherwise throw one another out for ever."""
    seat = desk.admit()
    seat.accepted = True
    desk.admit(incarnation=SECOND)
    with pytest.raises(RefusalError, match="took over") as refused:
        desk.admit(incarnation=FIRST, listener=LISTENER)
    assert refused.value.code == "closed"


def test_a_closed_conversation_is_told_with_its_reason(desk: Desk) -> None:
    seat = desk.admit()
    desk.reception.forget(seat, reason="disk full")
    assert desk.reception.seats() == []
    desk.reception.forget(seat, reason="disk full")
    with pytest.raises(RefusalError, match="this conversation was closed: disk full"):
        desk.admit(listener=LISTENER)
    assert desk.admit(incarnation=SECOND) is not seat


def test_closed_conversations_are_remembered_within_bounds(desk: Desk) -> None:
    for number in range(100):
        desk.reception.forget(desk.admit(incarnation=f"{number:032x}"), reason=None)
    assert len(desk.reception._closed) == 64


def test_a_conversation_that_ended_makes_room_for_the_next(desk: Desk) -> None:
    seat = desk.admit()
    seat.accepted = True
    seat.conversation.mailbox.end()
    assert desk.admit(listener="", incarnation=SECOND) is not seat


def test_a_place_that_we_cannot_go_on_from_is_refused(desk: Desk) -> None:
    desk.admit()
    with pytest.raises(RefusalError, match="lost its place"):
        desk.admit(listener=LISTENER, received=5)


def test_what_nobody_foresaw_ends_the_conversation(desk: Desk) -> None:
    seat = desk.admit()

    async def explode() -> None:
        raise KeyError("nobody foresaw this")

    async def run(work: Coroutine[object, object, None], *, cancel: bool) -> None:
        pump = asyncio.create_task(work)
        if cancel:
            pump.cancel()
        await asyncio.wait({pump})
        seat.settle(pump)

    asyncio.run(run(asyncio.sleep(WAIT_S), cancel=True))
    assert desk.reception.holds(seat)
    asyncio.run(run(explode(), cancel=False))
    with pytest.raises(ChannelError, match="broke: KeyError"):
        seat.conversation.receive(timeout_s=NOW_S)


def test_only_tls_1_3_is_spoken(desk: Desk) -> None:
    admission = Admission(frozenset({Role.TRUSTED}), None, "")
    data = handshake.encode_hello(desk.hello())
    with pytest.raises(RefusalError, match=r"the connection is TLSv1\.2; expected TLSv1.3"):
        admission.judge(
            data,
            tls="TLSv1.2",
            certificate=lambda: desk.trusted.certificate_der,
            own=desk.own,
        )


def test_a_judged_hello_comes_with_who_said_it(desk: Desk) -> None:
    admission = Admission(frozenset({Role.TRUSTED}), None, "")
    hello, peer = admission.judge(
        handshake.encode_hello(desk.hello()),
        tls="TLSv1.3",
        certificate=lambda: desk.trusted.certificate_der,
        own=desk.own,
    )
    assert hello == desk.hello()
    assert peer.name == desk.trusted.name
