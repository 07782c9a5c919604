"""The table of encoder and decoder against both ends' views."""

import pytest

from splitlearn.errors import SessionError
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.session import MAX_UNSETTLED, PAIR_NEXT, PairSession, PairState
from splitlearn.wire.messages import (
    Accept,
    Countersigned,
    Empty,
    Finish,
    Meta,
    OptimiserSpec,
    Pairing,
    Resume,
    Samples,
    ScheduleSpec,
    Settled,
    Settlement,
    Step,
    StepTensor,
    Want,
)

E, D = Role.ENCODER, Role.DECODER
SETTLEMENT = Settlement("0" * 64, 1, "1" * 64, "2" * 128, (), 1, "3" * 128)
SETTLED = Settled("0" * 64, 1, "1" * 64, "2" * 128, (), 1, "3" * 128, "4" * 128)


def pairing(*, trains: bool = True) -> Pairing:
    return Pairing(
        *("r", "c" * 32, "0" * 64, "1" * 64, "2" * 64, trains, 8, 4, 10, "identity", "identity"),
        OptimiserSpec("adamw", 1e-3, 0.0, 0.9, 0.98, 1e-8),
        ScheduleSpec("inverse_sqrt", 1, 10),
        seed=0,
        held=(0,),
    )


def rows(
    step: int, *, phase: str = "train", lengths: tuple[int, ...] = (5, 3), width: int = 5
) -> StepTensor:
    return StepTensor(step, 0, 1, phase, width, True, lengths, 7)  # type: ignore[arg-type]


class Pair:
    """Both ends; what is said arrives."""

    def __init__(self, *, trains: bool = True) -> None:
        self.ends = {E: PairSession(me=E, peer=D), D: PairSession(me=D, peer=E)}
        self.say(D, Kind.PAIRING, pairing(trains=trains))
        self.say(E, Kind.ACCEPT, Accept((0,), (), 0))
        self.say(E, Kind.SAMPLES, Samples(20, 5))
        self.say(D, Kind.SAMPLES, Samples(18, 4))
        self.say(D, Kind.RESUME, Resume(0, 0))
        self.say(E, Kind.READY, Empty())

    def say(self, role: Role, kind: Kind, meta: Meta) -> None:
        seq = self.ends[role].stamp(kind, meta)
        self.ends[D if role is E else E].check(kind, meta, seq=seq)

    def step(self, number: int) -> None:
        self.say(D, Kind.WANT, Want(number, "train", (17, 3)))
        self.say(E, Kind.ACTIVATION, rows(number))
        self.say(D, Kind.GRADIENT, rows(number, lengths=()))

    def settle(self) -> None:
        self.say(D, Kind.SETTLE, SETTLEMENT)
        self.say(E, Kind.SETTLED, SETTLED)
        self.say(D, Kind.COUNTERSIGNED, Countersigned("4" * 128))


def test_a_whole_run_is_legal() -> None:
    pair = Pair()
    pair.settle()
    pair.step(0)
    pair.step(1)
    pair.say(D, Kind.CHECKPOINT, Step(2))
    pair.say(E, Kind.SAVED, Step(2))
    pair.say(D, Kind.WANT, Want(2, "evaluate", (0, 3)))
    pair.say(E, Kind.ACTIVATION, rows(2, phase="evaluate"))
    pair.settle()
    pair.say(D, Kind.FINISH, Finish(False))
    pair.say(E, Kind.CLOSED, Empty())
    assert {end.state for end in pair.ends.values()} == {PairState.CLOSED}


def test_of_two_owners_none_keeps_a_best() -> None:
    pair = Pair()
    pair.settle()
    pair.step(0)
    with pytest.raises(SessionError, match="checkpoint has step 1 kept"):
        pair.say(D, Kind.CHECKPOINT, Step(1, 1))
    pair.say(D, Kind.CHECKPOINT, Step(1))


def test_an_encoder_that_stands_still_is_sent_no_gradient_and_no_checkpoint() -> None:
    pair = Pair(trains=False)
    pair.say(D, Kind.WANT, Want(0, "train", (1, 2)))
    pair.say(E, Kind.ACTIVATION, rows(0))
    assert pair.ends[D].state is PairState.OPEN
    with pytest.raises(SessionError, match="gradient by decoder while"):
        pair.say(D, Kind.GRADIENT, rows(0, lengths=()))
    with pytest.raises(SessionError, match="checkpoint of step 0"):
        pair.say(D, Kind.CHECKPOINT, Step(0))
    pair.say(D, Kind.WANT, Want(9, "train", (1, 2)))


@pytest.mark.parametrize(
    ("want", "says"),
    [
        (Want(1, "train", (0,)), "names step 1"),
        (Want(0, "train", (18,)), "numbered 18"),
        (Want(0, "evaluate", (4,)), "numbered 4"),
        (Want(0, "train", (0, 1, 2, 3, 4)), "of 5 samples"),
    ],
)
def test_what_was_not_agreed_on_may_not_be_asked_for(want: Want, says: str) -> None:
    with pytest.raises(SessionError, match=says):
        Pair().say(D, Kind.WANT, want)


@pytest.mark.parametrize(
    "answer",
    [
        rows(1),
        rows(0, phase="evaluate"),
        rows(0, lengths=(5,)),
        rows(0, lengths=(5, 3, 2)),
        rows(0, width=6),
        rows(0, lengths=(11, 2), width=11),
        StepTensor(0, 0, 2, "train", 5, True, (5, 3), 7),
        StepTensor(0, 0, 1, "train", 5, False, (5, 3), 7),
    ],
)
def test_an_answer_is_to_what_was_asked(answer: StepTensor) -> None:
    pair = Pair()
    pair.say(D, Kind.WANT, Want(0, "train", (17, 3)))
    with pytest.raises(SessionError):
        pair.say(E, Kind.ACTIVATION, answer)


def test_a_gradient_brings_no_lengths_of_its_own() -> None:
    pair = Pair()
    pair.say(D, Kind.WANT, Want(0, "train", (17, 3)))
    pair.say(E, Kind.ACTIVATION, rows(0))
    with pytest.raises(SessionError, match="lengths of its own"):
        pair.say(D, Kind.GRADIENT, rows(0))


def test_more_samples_in_common_than_were_named_are_refused() -> None:
    pair = Pair()
    for end in pair.ends.values():
        end.state = PairState.NAMED
    with pytest.raises(SessionError, match="more than were named"):
        pair.say(D, Kind.SAMPLES, Samples(21, 0))


def test_weights_stay_where_they_are() -> None:
    with pytest.raises(SessionError, match="adapters stay"):
        Pair().say(D, Kind.FINISH, Finish(True))


def test_no_step_begins_with_too_much_unsettled() -> None:
    pair = Pair()
    for end in pair.ends.values():
        end.unsettled = MAX_UNSETTLED + 1
    with pytest.raises(SessionError, match="expected settle first"):
        pair.say(D, Kind.WANT, Want(0, "train", (0,)))


def test_the_table_lets_only_those_speak_who_may() -> None:
    for following in PAIR_NEXT.values():
        for sender, kind in following:
            assert (sender, D if sender is E else E) in MAY_SEND[kind]
    assert set(PAIR_NEXT) == set(PairState)
