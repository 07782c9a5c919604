"""The table of a stream against both ends' views, with messages that cross."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import SessionError
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.session import MAX_UNSETTLED, STREAM_NEXT, StreamSession, StreamState
from splitlearn.wire.messages import (
    Ask,
    Countersigned,
    Empty,
    Enlist,
    Ids,
    Meta,
    Report,
    Round,
    Settled,
    Settlement,
)

G, D = Role.GENERATOR, Role.DISCRIMINATOR


def called(*, following: int = 0) -> Round:
    return Round("r", "c" * 32, "1" * 64, "0" * 64, 0, 1_000, "a" * 64, 4, 16, 0.15, 1, following)


def enlist(index: int = 0) -> Enlist:
    return Enlist("sw", "a" * 64, 1_000, index, 0)


def ids(index: int, *, phase: str = "train", lengths: tuple[int, ...] = (3, 4)) -> Ids:
    return Ids(index, phase, lengths)  # type: ignore[arg-type]


SETTLEMENT = Settlement("0" * 64, 1, "1" * 64, "2" * 128, (), 1, "3" * 128)
SETTLED = Settled("0" * 64, 1, "1" * 64, "2" * 128, (), 1, "3" * 128, "4" * 128)
REPORT = Report(1, 7, 2.0, 1.0)


class Pair:
    """Both ends, and what is under way between them."""

    def __init__(self) -> None:
        self.ends = {G: StreamSession(me=G, peer=D), D: StreamSession(me=D, peer=G)}
        self.way: dict[Role, deque[tuple[Kind, Meta, int]]] = {G: deque(), D: deque()}

    def say(self, role: Role, kind: Kind, meta: Meta, *, arrives: bool = True) -> None:
        seq = self.ends[role].stamp(kind, meta)
        to = D if role is G else G
        self.way[to].append((kind, meta, seq))
        if arrives:
            self.deliver(to)

    def deliver(self, to: Role) -> None:
        while self.way[to]:
            kind, meta, seq = self.way[to].popleft()
            self.ends[to].check(kind, meta, seq=seq)

    def begin(self, *, train: int = 0, evaluate: int = 0) -> "Pair":
        self.say(D, Kind.ROUND, called())
        self.say(G, Kind.ENLIST, enlist())
        self.say(D, Kind.ASK, Ask(train, evaluate, 0))
        return self

    def settle(self) -> None:
        self.say(G, Kind.SETTLE, SETTLEMENT)
        self.say(D, Kind.SETTLED, SETTLED)
        self.say(G, Kind.COUNTERSIGNED, Countersigned("4" * 128))


def test_a_whole_round_is_legal() -> None:
    pair = Pair().begin(train=2, evaluate=1)
    for index in range(2):
        pair.say(G, Kind.IDS, ids(index))
    pair.say(G, Kind.IDS, ids(0, phase="evaluate"))
    pair.settle()
    pair.say(D, Kind.ENOUGH, Empty())
    pair.say(G, Kind.REPORT, REPORT)
    pair.settle()
    pair.say(D, Kind.CLOSED, Empty())
    assert {end.state for end in pair.ends.values()} == {StreamState.CLOSED}


def test_what_the_discriminator_says_may_arrive_in_the_middle_of_a_settlement() -> None:
    pair = Pair().begin(train=1)
    pair.say(D, Kind.ASK, Ask(3, 0, 0), arrives=False)
    pair.say(D, Kind.ENOUGH, Empty(), arrives=False)
    pair.say(G, Kind.SETTLE, SETTLEMENT)
    pair.say(D, Kind.SETTLED, SETTLED)
    pair.say(G, Kind.COUNTERSIGNED, Countersigned("4" * 128))
    assert pair.ends[G].enough
    assert pair.ends[G].wanted("train") == 3


def test_a_batch_on_its_way_when_it_was_enough_is_legal_and_a_later_one_is_not() -> None:
    pair = Pair().begin(train=3)
    pair.say(D, Kind.ENOUGH, Empty(), arrives=False)
    pair.say(G, Kind.IDS, ids(0))
    pair.deliver(G)
    with pytest.raises(SessionError, match="after enough was heard"):
        pair.ends[G].stamp(Kind.IDS, ids(1))


def test_no_more_batches_than_were_asked_for() -> None:
    pair = Pair().begin(train=1)
    pair.say(G, Kind.IDS, ids(0))
    for end in (pair.ends[G].stamp, lambda k, m: pair.ends[D].check(k, m, seq=3)):
        with pytest.raises(SessionError, match="2 batches where 1 were asked for"):
            end(Kind.IDS, ids(1))


def test_held_out_batches_are_counted_by_themselves() -> None:
    pair = Pair().begin(train=1)
    with pytest.raises(SessionError, match="where 0 were asked for"):
        pair.ends[G].stamp(Kind.IDS, ids(0, phase="evaluate"))


@pytest.mark.parametrize("again", [0, 4])
def test_no_index_comes_twice(again: int) -> None:
    pair = Pair().begin(train=3)
    pair.say(G, Kind.IDS, ids(4))
    with pytest.raises(SessionError, match="expected 5 or later"):
        pair.ends[D].check(Kind.IDS, ids(again), seq=3)


def test_nothing_below_what_was_taken_before_is_taken() -> None:
    pair = Pair()
    pair.say(D, Kind.ROUND, called(following=40))
    pair.say(G, Kind.ENLIST, enlist(index=12))
    pair.say(D, Kind.ASK, Ask(3, 0, 0))
    with pytest.raises(SessionError, match="expected 40 or later"):
        pair.ends[G].stamp(Kind.IDS, ids(12))


def test_a_generator_that_is_further_does_not_go_back() -> None:
    pair = Pair()
    pair.say(D, Kind.ROUND, called(following=4))
    pair.say(G, Kind.ENLIST, enlist(index=12))
    pair.say(D, Kind.ASK, Ask(3, 0, 0))
    with pytest.raises(SessionError, match="expected 12 or later"):
        pair.ends[D].check(Kind.IDS, ids(11), seq=2)


@pytest.mark.parametrize("lengths", [(17,), (1, 1, 1, 1, 1)])
def test_no_batch_is_larger_than_the_rounds(lengths: tuple[int, ...]) -> None:
    pair = Pair().begin(train=1)
    with pytest.raises(SessionError, match="larger than the round's batches"):
        pair.ends[G].stamp(Kind.IDS, ids(0, lengths=lengths))


@pytest.mark.parametrize("ask", [Ask(1, 0, 0), Ask(2, 0, 0)])
def test_nothing_is_taken_back_that_was_asked_for(ask: Ask) -> None:
    pair = Pair().begin(train=2, evaluate=1)
    with pytest.raises(SessionError, match="ask for"):
        pair.ends[D].stamp(Kind.ASK, ask)


def test_nothing_is_asked_for_after_enough() -> None:
    pair = Pair().begin()
    pair.say(D, Kind.ENOUGH, Empty())
    with pytest.raises(SessionError, match="ask for"):
        pair.ends[D].stamp(Kind.ASK, Ask(9, 0, 0))
    with pytest.raises(SessionError, match="enough twice"):
        pair.ends[D].stamp(Kind.ENOUGH, Empty())


def test_a_report_comes_once_and_after_enough() -> None:
    pair = Pair().begin()
    with pytest.raises(SessionError, match="after enough"):
        pair.ends[D].check(Kind.REPORT, REPORT, seq=2)
    pair = Pair().begin(train=1)
    pair.say(D, Kind.ENOUGH, Empty())
    pair.say(G, Kind.REPORT, REPORT)
    with pytest.raises(SessionError, match="report once"):
        pair.ends[G].stamp(Kind.REPORT, REPORT)
    with pytest.raises(SessionError):
        pair.ends[D].check(Kind.IDS, ids(0), seq=3)


def test_the_last_word_waits_for_report_and_receipt() -> None:
    pair = Pair().begin()
    with pytest.raises(SessionError, match="before a report and its receipt"):
        pair.ends[D].stamp(Kind.CLOSED, Empty())
    pair.say(D, Kind.ENOUGH, Empty())
    pair.say(G, Kind.REPORT, REPORT)
    with pytest.raises(SessionError, match="before a report and its receipt"):
        pair.ends[D].stamp(Kind.CLOSED, Empty())


def test_no_batch_over_too_many_messages_without_a_receipt() -> None:
    pair = Pair().begin(train=2_000)
    for index in range(MAX_UNSETTLED):
        pair.ends[G].stamp(Kind.IDS, ids(index))
    pair.ends[G].unsettled += MAX_UNSETTLED
    with pytest.raises(SessionError, match="expected settle first"):
        pair.ends[G].stamp(Kind.IDS, ids(MAX_UNSETTLED))


@pytest.mark.parametrize("seq", [1, 3])
def test_numbers_go_up_by_one(seq: int) -> None:
    pair = Pair().begin(train=1)
    with pytest.raises(SessionError, match=r"repeats|runs ahead of"):
        pair.ends[D].check(Kind.IDS, ids(0), seq=seq)


@given(st.sampled_from(sorted(Kind)), st.sampled_from(sorted(StreamState)))
def test_only_what_the_table_names_is_legal(kind: Kind, state: StreamState) -> None:
    for me, peer in ((G, D), (D, G)):
        if (me, kind) not in STREAM_NEXT[state]:
            session = StreamSession(me=me, peer=peer, state=state)
            with pytest.raises(SessionError):
                session.stamp(kind, Empty())
            assert session.state is state


def test_the_table_names_only_what_its_role_may_say() -> None:
    for row in STREAM_NEXT.values():
        for sender, kind in row:
            assert (sender, D if sender is G else G) in MAY_SEND[kind]
