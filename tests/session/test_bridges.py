"""The table of a hop against both ends' views."""

import pytest

from splitlearn.errors import SessionError
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.session import BRIDGE_NEXT, MAX_UNSETTLED, BridgeSession, BridgeState, Side
from splitlearn.wire.messages import (
    Accept,
    Bridge,
    Countersigned,
    Empty,
    Finish,
    Meta,
    Resume,
    Settled,
    Settlement,
    StepTensor,
)

B, A = Side.BEFORE, Side.AFTER
SETTLEMENT = Settlement("0" * 64, 1, "1" * 64, "2" * 128, (), 1, "3" * 128)
SETTLED = Settled("0" * 64, 1, "1" * 64, "2" * 128, (), 1, "3" * 128, "4" * 128)


def terms(mode: str = "full", purpose: str = "train") -> Bridge:
    return Bridge("r", "b" * 32, "0" * 64, "1" * 64, purpose, mode, 2, "identity", "identity")  # type: ignore[arg-type]


def rows(
    step: int,
    micro_batch: int = 0,
    *,
    of: int = 1,
    phase: str = "train",
    lengths: tuple[int, ...] = (5, 3),
    width: int = 5,
) -> StepTensor:
    return StepTensor(step, micro_batch, of, phase, width, True, lengths, 0)  # type: ignore[arg-type]


class Pair:
    """Both ends; what is said arrives."""

    def __init__(self, *, mode: str = "full", purpose: str = "train", step: int = 0) -> None:
        self.ends = {s: BridgeSession(Role.COMPUTE, Role.COMPUTE, side=s) for s in Side}
        self.say(B, Kind.BRIDGE, terms(mode, purpose))
        self.say(A, Kind.ACCEPT, Accept((step,), (), 0))
        self.say(B, Kind.RESUME, Resume(step, 0))
        self.say(A, Kind.READY, Empty())

    def say(self, side: Side, kind: Kind, meta: Meta) -> None:
        seq = self.ends[side].stamp(kind, meta)
        self.ends[A if side is B else B].check(kind, meta, seq=seq)

    def there(self, *args: object, **how: object) -> None:
        self.say(B, Kind.ACTIVATION, rows(*args, **how))  # type: ignore[arg-type]

    def back(self, *args: object, **how: object) -> None:
        self.say(A, Kind.INPUT_GRADIENT, rows(*args, lengths=(), **how))  # type: ignore[arg-type]

    def settle(self) -> None:
        self.say(B, Kind.SETTLE, SETTLEMENT)
        self.say(A, Kind.SETTLED, SETTLED)
        self.say(B, Kind.COUNTERSIGNED, Countersigned("4" * 128))


def test_a_whole_run_is_legal() -> None:
    pair = Pair(step=4)
    pair.settle()
    pair.there(4, 0, of=2)
    pair.there(4, 1, of=2)
    pair.back(4, 0, of=2)
    assert not pair.ends[A].between_steps
    pair.back(4, 1, of=2)
    assert pair.ends[B].between_steps
    pair.there(5, phase="evaluate")
    pair.there(5)
    pair.back(5)
    pair.settle()
    pair.say(B, Kind.FINISH, Finish(False))
    pair.say(A, Kind.CLOSED, Empty())
    assert {end.state for end in pair.ends.values()} == {BridgeState.CLOSED}
    assert {end.next_step for end in pair.ends.values()} == {6}


def test_where_layers_stand_still_no_gradient_is_legal() -> None:
    pair = Pair(mode="features")
    pair.there(0, 0, of=2)
    with pytest.raises(SessionError, match="gradients come back: False"):
        pair.back(0, 0, of=2)


def test_a_run_to_evaluate_trains_nothing() -> None:
    pair = Pair(purpose="evaluate")
    pair.there(0, phase="evaluate")
    with pytest.raises(SessionError, match="to train on, on a hop of a run to evaluate"):
        pair.there(0)
    with pytest.raises(SessionError, match="to generate on"):
        pair.there(0, phase="generate")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ((1,), "expected the activation of step 0"),
        ((0, 1), "expected number 0"),
    ],
)
def test_a_neighbour_that_lies_about_step_or_order_is_refused(
    place: tuple[int, ...], says: str
) -> None:
    pair = Pair()
    with pytest.raises(SessionError, match=says):
        pair.ends[A].check(Kind.ACTIVATION, rows(*place, of=2), seq=3)


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (rows(1, 1, of=2), "micro-batch 1 of 2 of train step 1"),
        (rows(0, 1, of=3), "micro-batch 1 of 3 of train step 0"),
        (rows(0, 1, of=2, phase="evaluate"), "of evaluate step 0"),
        (rows(0, 0, of=2), "expected number 1"),
        (rows(0, 1, of=2, lengths=()), "of 0 examples"),
        (rows(0, 1, of=2, lengths=(9,)), "examples within the padding"),
    ],
)
def test_a_step_goes_on_as_it_began(meta: StepTensor, says: str) -> None:
    pair = Pair()
    pair.there(0, 0, of=2)
    with pytest.raises(SessionError, match=says):
        pair.ends[A].check(Kind.ACTIVATION, meta, seq=4)


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (rows(0, 1, of=2, lengths=()), "is micro-batch 1"),
        (rows(0, 0, of=2, lengths=(), width=6), "padded to 6"),
        (rows(0, 0, of=2), "padded to 5"),
    ],
)
def test_a_gradient_is_of_an_activation_that_is_not_answered_yet(
    meta: StepTensor, says: str
) -> None:
    pair = Pair()
    pair.there(0, 0, of=2)
    with pytest.raises(SessionError, match=says):
        pair.ends[B].check(Kind.INPUT_GRADIENT, meta, seq=3)


def test_both_ends_stand_at_one_step_or_do_not_begin() -> None:
    ends = {s: BridgeSession(Role.COMPUTE, Role.COMPUTE, side=s) for s in Side}
    for side, kind, meta in (
        (B, Kind.BRIDGE, terms()),
        (A, Kind.ACCEPT, Accept((3,), (), 0)),
    ):
        seq = ends[side].stamp(kind, meta)
        ends[A if side is B else B].check(kind, meta, seq=seq)
    with pytest.raises(SessionError, match="names step 4"):
        ends[B].stamp(Kind.RESUME, Resume(4, 0))


@pytest.mark.parametrize(
    "accept", [Accept((), (), 0), Accept((1, 2), (), 0), Accept((0,), ("layers",), 0)]
)
def test_a_neighbour_names_one_step_and_asks_for_no_weights(accept: Accept) -> None:
    session = BridgeSession(Role.COMPUTE, Role.COMPUTE, side=B)
    session.stamp(Kind.BRIDGE, terms())
    with pytest.raises(SessionError, match="names the one step"):
        session.check(Kind.ACCEPT, accept, seq=1)


def test_no_settlement_and_no_goodbye_comes_in_the_middle_of_a_step() -> None:
    for kind, meta in ((Kind.SETTLE, SETTLEMENT), (Kind.FINISH, Finish(False))):
        pair = Pair()
        pair.there(0, 0, of=2)
        with pytest.raises(SessionError, match="in the middle of step 0"):
            pair.say(B, kind, meta)


def test_no_weights_are_handed_back_over_a_hop() -> None:
    with pytest.raises(SessionError, match="has none to give"):
        Pair().say(B, Kind.FINISH, Finish(True))


def test_too_many_messages_without_a_receipt_end_it() -> None:
    pair = Pair(mode="features")
    pair.settle()
    for step in range(MAX_UNSETTLED + 1):
        pair.there(step)
    with pytest.raises(
        SessionError, match=f"while {MAX_UNSETTLED + 1} messages are without a receipt"
    ):
        pair.there(MAX_UNSETTLED + 1)


def test_neither_end_says_what_is_the_others_to_say() -> None:
    with pytest.raises(SessionError, match="activation by after"):
        Pair().say(A, Kind.ACTIVATION, rows(0))
    pair = Pair()
    pair.there(0)
    with pytest.raises(SessionError, match="input_gradient by before"):
        pair.say(B, Kind.INPUT_GRADIENT, rows(0, lengths=()))
    with pytest.raises(SessionError, match="a compute party may not send checkpoint"):
        Pair().say(B, Kind.CHECKPOINT, Empty())


def test_the_table_has_every_state_and_nothing_that_roles_do_not_allow() -> None:
    assert set(BRIDGE_NEXT) == set(BridgeState)
    along = (Role.COMPUTE, Role.COMPUTE)
    said = {kind for row in BRIDGE_NEXT.values() for _, kind in row}
    assert said == {kind for kind in Kind if along in MAY_SEND[kind]}
