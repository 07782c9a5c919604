"""The conversation's tables against both parties' views of it."""

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import SessionError
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.session import EXCHANGE, MAX_UNSETTLED, NEXT, Session, State
from splitlearn.wire.messages import (
    Accept,
    BottleneckSpec,
    CodecSpec,
    CutSpec,
    Detail,
    Empty,
    Finish,
    Hops,
    Memory,
    Meta,
    Neighbour,
    Norm,
    Offer,
    OptimiserSpec,
    Resume,
    Scale,
    ScheduleSpec,
    Shard,
    Step,
    StepTensor,
    TrunkModel,
)


def offer(
    *, purpose: str = "train", mode: str = "full", back: bool = True, staleness: int = 0
) -> Offer:
    none = BottleneckSpec("none", 0)
    return Offer(
        run="r",
        conversation="c" * 32,
        job="0" * 64,
        salt="1" * 64,
        purpose=purpose,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        returns_input_gradient=back,
        model=TrunkModel("bert", {"hidden_size": 32}),
        cut=CutSpec(1, 2, none, none),
        codecs=CodecSpec("identity", "identity", "identity", "identity"),
        optimiser=OptimiserSpec("adamw", 1e-4, 0.0, 0.9, 0.999, 1e-8),
        schedule=ScheduleSpec("constant", 0, 10, staleness),
        seed=0,
        layers="2" * 64,
        bottlenecks="3" * 64,
        bases="4" * 64,
        held=(0,),
    )


def tensor(i: int, *, of: int = 2, step: int = 0, phase: str = "train") -> StepTensor:
    lengths = (3, 4)
    return StepTensor(step, i, of, phase, 4, True, lengths, 0)  # type: ignore[arg-type]


class Pair:
    """Both parties' sessions, with the messages between them delivered at once."""

    def __init__(self) -> None:
        self.trusted = Session(me=Role.TRUSTED, peer=Role.COMPUTE)
        self.compute = Session(me=Role.COMPUTE, peer=Role.TRUSTED)

    def say(self, who: Role, kind: Kind, meta: Meta | None = None) -> None:
        speaker, hearer = (
            (self.trusted, self.compute) if who is Role.TRUSTED else (self.compute, self.trusted)
        )
        meta = meta or (Finish(False) if kind is Kind.FINISH else Empty())
        hearer.check(kind, meta, seq=speaker.stamp(kind, meta))

    def open(self, the_offer: Offer | None = None, *, step: int = 0) -> "Pair":
        self.say(Role.TRUSTED, Kind.OFFER, the_offer or offer())
        self.say(Role.COMPUTE, Kind.ACCEPT, Accept((0,), (), 0))
        self.say(Role.TRUSTED, Kind.RESUME, Resume(step, 0))
        self.say(Role.COMPUTE, Kind.READY)
        return self

    def step(self, step: int = 0, *, of: int = 2) -> None:
        for who, kind in (
            (Role.TRUSTED, Kind.ACTIVATION),
            (Role.COMPUTE, Kind.OUTPUT),
            (Role.TRUSTED, Kind.GRADIENT),
            (Role.COMPUTE, Kind.INPUT_GRADIENT),
        ):
            for i in range(of):
                self.say(who, kind, tensor(i, of=of, step=step))

    def settle(self) -> None:
        self.say(Role.TRUSTED, Kind.SETTLE)
        self.say(Role.COMPUTE, Kind.SETTLED)
        self.say(Role.TRUSTED, Kind.COUNTERSIGNED)


def test_a_whole_run_is_legal_on_both_sides() -> None:
    pair = Pair()
    pair.say(Role.TRUSTED, Kind.OFFER, offer())
    pair.say(Role.COMPUTE, Kind.ACCEPT, Accept((0,), ("layers",), 0))
    pair.say(Role.TRUSTED, Kind.WEIGHTS, Shard(0, 2))
    pair.say(Role.TRUSTED, Kind.WEIGHTS, Shard(1, 2))
    pair.say(Role.TRUSTED, Kind.RESUME, Resume(0, 0))
    pair.say(Role.COMPUTE, Kind.READY)
    for step in range(3):
        pair.step(step)
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(3))
    pair.say(Role.COMPUTE, Kind.SAVED, Step(3))
    for i in range(2):
        pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(i, step=3, phase="evaluate"))
        pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(i, step=3, phase="evaluate"))
    pair.settle()
    pair.say(Role.TRUSTED, Kind.FINISH, Finish(True))
    pair.say(Role.COMPUTE, Kind.WEIGHTS, Shard(0, 1))
    pair.say(Role.COMPUTE, Kind.CLOSED)
    assert pair.trusted.state is pair.compute.state is State.CLOSED
    assert pair.trusted.next_out == pair.compute.next_in
    assert pair.compute.next_out == pair.trusted.next_in


@pytest.mark.parametrize(("mode", "wanted"), [("full", False), ("features", True)])
def test_weights_come_back_only_where_they_were_trained_and_asked_for(
    mode: str, wanted: bool
) -> None:
    pair = Pair().open(offer(mode=mode, back=False))
    pair.say(Role.TRUSTED, Kind.FINISH, Finish(wanted))
    with pytest.raises(SessionError, match="nobody asked for"):
        pair.compute.stamp(Kind.WEIGHTS, Shard(0, 1))


def test_no_step_begins_over_too_many_messages_without_a_receipt() -> None:
    pair = Pair().open()
    step = 0
    while pair.trusted.unsettled <= MAX_UNSETTLED:
        pair.step(step)
        step += 1
    with pytest.raises(SessionError, match=r"without a receipt.*expected settle first"):
        pair.trusted.stamp(Kind.ACTIVATION, tensor(0, step=step))
    with pytest.raises(SessionError, match="without a receipt"):
        pair.compute.check(Kind.ACTIVATION, tensor(0, step=step), seq=pair.compute.next_in)


def test_settling_begins_the_count_anew_and_leaves_the_step_as_it_was() -> None:
    pair = Pair().open()
    pair.step(0)
    pair.settle()
    assert pair.trusted.unsettled == pair.compute.unsettled == 0
    pair.step(1)
    assert pair.trusted.next_step == 2


def test_a_conversation_resumes_at_the_step_agreed_on() -> None:
    pair = Pair().open(step=7)
    pair.step(7)
    assert pair.trusted.next_step == pair.compute.next_step == 8


@pytest.mark.parametrize(("shift", "word"), [(-1, "repeats"), (1, "runs ahead of")])
def test_a_repeated_or_reordered_message_names_both_numbers(shift: int, word: str) -> None:
    pair = Pair().open()
    meta = tensor(0)
    seq = pair.trusted.stamp(Kind.ACTIVATION, meta)
    with pytest.raises(SessionError, match=f"message {seq + shift} .*{word}.* number {seq}"):
        pair.compute.check(Kind.ACTIVATION, meta, seq=seq + shift)


def test_features_mode_makes_every_gradient_illegal() -> None:
    pair = Pair().open(offer(mode="features", back=False))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1))
    with pytest.raises(SessionError, match="gradient"):
        pair.trusted.stamp(Kind.GRADIENT, tensor(0, of=1))


def test_a_frozen_bottom_makes_input_gradients_illegal() -> None:
    pair = Pair().open(offer(back=False))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1))
    pair.say(Role.TRUSTED, Kind.GRADIENT, tensor(0, of=1))
    with pytest.raises(SessionError, match="input_gradient"):
        pair.compute.stamp(Kind.INPUT_GRADIENT, tensor(0, of=1))


def test_an_evaluation_run_refuses_a_training_step() -> None:
    pair = Pair().open(offer(purpose="evaluate"))
    with pytest.raises(SessionError, match="training step"):
        pair.trusted.stamp(Kind.ACTIVATION, tensor(0))


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (Kind.ACTIVATION, tensor(1)),  # out of order
        (Kind.ACTIVATION, tensor(2)),  # past the end
        (Kind.ACTIVATION, tensor(0, of=3, step=1)),  # a step ahead
        (Kind.ACTIVATION, tensor(0, of=0)),  # a step of nothing
        (Kind.GRADIENT, tensor(0)),  # before its output
        (Kind.CHECKPOINT, Step(1)),  # a step not done
        (Kind.OFFER, offer()),  # a second offer
        (Kind.OUTPUT, tensor(0)),  # not ours to say
    ],
)
def test_what_the_tables_do_not_name_is_refused_at_the_sender(kind: Kind, meta: Meta) -> None:
    pair = Pair().open()
    with pytest.raises(SessionError):
        pair.trusted.stamp(kind, meta)


def test_with_a_frozen_bottom_the_next_step_may_begin_right_after_the_last_gradient() -> None:
    pair = Pair().open(offer(back=False))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1))
    with pytest.raises(SessionError, match="not finished"):
        pair.compute.check(Kind.ACTIVATION, tensor(0, step=1), seq=pair.compute.next_in)
    pair.say(Role.TRUSTED, Kind.GRADIENT, tensor(0, of=1))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, step=1))


def clipping(**terms: Any) -> Offer:
    return msgspec.structs.replace(offer(**terms), detail=Detail(clips=True))


@pytest.mark.parametrize("back", [True, False])
def test_a_step_that_is_clipped_ends_with_a_norm_and_a_factor(back: bool) -> None:
    pair = Pair().open(clipping(back=back))
    for step in range(2):
        for who, kind in STEP_KINDS[: 4 if back else 3]:
            pair.say(who, kind, tensor(0, of=1, step=step))
        pair.say(Role.COMPUTE, Kind.NORM, Norm(step, (1.0,)))
        assert pair.trusted.state is pair.compute.state is State.SCALING
        pair.say(Role.TRUSTED, Kind.SCALE, Scale(step, 0.5))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=2, phase="evaluate"))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1, step=2, phase="evaluate"))
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(2))


@pytest.mark.parametrize(
    ("who", "kind", "meta"),
    [
        (Role.TRUSTED, Kind.ACTIVATION, tensor(0, step=1)),
        (Role.TRUSTED, Kind.CHECKPOINT, Step(1)),
        (Role.TRUSTED, Kind.SETTLE, Empty()),
        (Role.TRUSTED, Kind.FINISH, Finish(False)),
        (Role.TRUSTED, Kind.SCALE, Scale(0, 1.0)),
        (Role.COMPUTE, Kind.NORM, Norm(1, ())),
    ],
)
def test_nothing_comes_between_a_clipped_step_and_its_norm(
    who: Role, kind: Kind, meta: Meta
) -> None:
    pair = Pair().open(clipping())
    pair.step(0)
    with pytest.raises(SessionError, match=kind):
        pair.say(who, kind, meta)


def test_a_factor_is_of_the_step_that_ended() -> None:
    pair = Pair().open(clipping())
    pair.step(0)
    pair.say(Role.COMPUTE, Kind.NORM, Norm(0, ()))
    with pytest.raises(SessionError, match="scale names step 1"):
        pair.trusted.stamp(Kind.SCALE, Scale(1, 1.0))


def test_a_norm_is_legal_only_where_the_offer_says_that_gradients_are_clipped() -> None:
    pair = Pair().open()
    pair.step(0)
    with pytest.raises(SessionError, match="norm by compute"):
        pair.compute.stamp(Kind.NORM, Norm(0, ()))
    pair = Pair().open(clipping())
    with pytest.raises(SessionError, match="norm by compute"):
        pair.compute.stamp(Kind.NORM, Norm(0, ()))


@pytest.mark.parametrize("terms", [{"mode": "features", "back": False}, {"staleness": 1}])
def test_clipping_is_offered_only_for_exact_steps_in_which_the_trunk_trains(
    terms: dict[str, Any],
) -> None:
    for session in (Pair().trusted, Pair().compute):
        said = session.stamp if session.me is Role.TRUSTED else partial(session.check, seq=1)
        with pytest.raises(SessionError, match="asks for norm and scale"):
            said(Kind.OFFER, clipping(**terms))


STEP_KINDS = (
    (Role.TRUSTED, Kind.ACTIVATION),
    (Role.COMPUTE, Kind.OUTPUT),
    (Role.TRUSTED, Kind.GRADIENT),
    (Role.COMPUTE, Kind.INPUT_GRADIENT),
)


def test_steps_interleave_by_as_many_as_were_agreed_on_and_end_in_their_order() -> None:
    pair = Pair().open(offer(staleness=2))
    for step in range(3):
        pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=step))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1, step=0))
    assert [group.step for group in pair.compute.groups] == [0, 1, 2]
    with pytest.raises(SessionError, match=r"step 3 while .*step 0 is not finished; 2 steps ahead"):
        pair.trusted.stamp(Kind.ACTIVATION, tensor(0, of=1, step=3))
    with pytest.raises(SessionError, match="2 steps ahead were agreed on"):
        pair.compute.check(Kind.ACTIVATION, tensor(0, of=1, step=3), seq=pair.compute.next_in)


def test_an_interleaved_step_that_ends_makes_room_for_one_more() -> None:
    pair = Pair().open(offer(staleness=1))
    for step in range(2):
        pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=step))
    for who, kind in (
        (Role.COMPUTE, Kind.OUTPUT),
        (Role.TRUSTED, Kind.GRADIENT),
        (Role.COMPUTE, Kind.INPUT_GRADIENT),
    ):
        pair.say(who, kind, tensor(0, of=1, step=0))
    assert pair.trusted.next_step == pair.compute.next_step == 1
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=2))
    assert [group.step for group in pair.trusted.groups] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (Kind.ACTIVATION, tensor(0, step=1)),  # before all of step 0 has left
        (Kind.ACTIVATION, tensor(0, step=2)),  # a step left out
        (Kind.ACTIVATION, tensor(0, step=0, phase="evaluate")),  # an evaluation beside training
        (Kind.CHECKPOINT, Step(0)),
        (Kind.SETTLE, Empty()),
        (Kind.FINISH, Finish(False)),
    ],
)
def test_interleaving_allows_nothing_else_in_the_middle_of_a_step(kind: Kind, meta: Meta) -> None:
    pair = Pair().open(offer(staleness=2))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0))
    with pytest.raises(SessionError):
        pair.trusted.stamp(kind, meta)


def test_a_later_steps_message_never_overtakes_an_earlier_steps() -> None:
    pair = Pair().open(offer(staleness=1))
    for step in range(2):
        for i in range(2):
            pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(i, step=step))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, step=0))
    with pytest.raises(SessionError, match="output for micro-batch 0 of step 1"):
        pair.compute.stamp(Kind.OUTPUT, tensor(0, step=1))


def test_an_unfinished_step_can_be_neither_left_nor_saved_nor_changed() -> None:
    for kind, meta in (
        (Kind.ACTIVATION, tensor(0, step=1)),
        (Kind.CHECKPOINT, Step(0)),
        (Kind.FINISH, Finish(False)),
        (Kind.SETTLE, Empty()),
        (Kind.ACTIVATION, tensor(1, of=3)),
    ):
        pair = Pair().open()
        pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0))
        with pytest.raises(SessionError):
            pair.trusted.stamp(kind, meta)


def test_an_error_says_where_each_micro_batch_stands() -> None:
    pair = Pair().open()
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0))
    with pytest.raises(SessionError, match="0 in trunk, 1 new"):
        pair.compute.stamp(Kind.OUTPUT, tensor(1))


def test_a_step_needs_an_offer() -> None:
    session = Session(me=Role.TRUSTED, peer=Role.COMPUTE, state=State.OPEN)
    with pytest.raises(SessionError, match="offer"):
        session.stamp(Kind.ACTIVATION, tensor(0))


def test_every_transition_is_one_that_its_sender_may_say() -> None:
    for row in NEXT.values():
        for sender, kind in row:
            assert sender in {who for who, _ in MAY_SEND[kind]}
    assert {kind for row in EXCHANGE.values() for kind in row} <= set(MAY_SEND)


@given(
    st.lists(st.sampled_from([(w, k) for k in Kind for w in (Role.TRUSTED, Role.COMPUTE)])),
    st.booleans(),
)
def test_no_sequence_of_words_brings_the_two_views_apart(
    words: list[tuple[Role, Kind]], clips: bool
) -> None:
    pair = Pair().open(clipping() if clips else offer())
    metas: dict[Kind, Meta] = {
        Kind.OFFER: offer(),
        Kind.ACCEPT: Accept((0,), (), 0),
        Kind.WEIGHTS: Shard(0, 1),
        Kind.RESUME: Resume(0, 0),
        Kind.CHECKPOINT: Step(0),
        Kind.SAVED: Step(0),
        Kind.FINISH: Finish(True),
        Kind.NORM: Norm(0, ()),
        Kind.SCALE: Scale(0, 1.0),
    }
    for who, kind in words:
        meta = metas.get(kind, tensor(0, of=1) if kind in set(TENSOR_KINDS) else Empty())
        try:
            pair.say(who, kind, meta)
        except SessionError:
            break
        assert pair.trusted.state is pair.compute.state
        assert pair.trusted.next_step == pair.compute.next_step


TENSOR_KINDS = [kind for row in EXCHANGE.values() for kind in row]


def repeating(**more: object) -> Offer:
    made = offer(mode="features", back=False, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(made, detail=Detail(repeats=True))


def test_steps_whose_outputs_are_kept_are_left_out_by_both_sides() -> None:
    pair = Pair().open(repeating())
    for step in (0, 5):
        pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=step))
        pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1, step=step))
    assert pair.trusted.next_step == pair.compute.next_step == 6
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(9))
    pair.say(Role.COMPUTE, Kind.SAVED, Step(9))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=9, phase="evaluate"))
    pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1, step=9, phase="evaluate"))
    assert pair.trusted.next_step == pair.compute.next_step == 9


def test_they_are_left_out_forwards_only_between_steps_only_and_by_the_trusted_party_only() -> None:
    pair = Pair().open(repeating(), step=4)
    with pytest.raises(SessionError, match="expected the activation of step 4"):
        pair.trusted.stamp(Kind.ACTIVATION, tensor(0, of=1, step=3))
    pair = Pair().open(repeating())
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, step=2))
    with pytest.raises(SessionError, match="not finished"):
        pair.trusted.stamp(Kind.ACTIVATION, tensor(0, step=3))
    pair = Pair().open(repeating())
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(3))
    with pytest.raises(SessionError, match="saved names step 4"):
        pair.compute.stamp(Kind.SAVED, Step(4))


def test_a_checkpoint_names_a_best_no_later_than_itself_and_what_is_saved_none() -> None:
    pair = Pair().open(offer(mode="features", back=False))
    with pytest.raises(SessionError, match="checkpoint of step 0 has step 1 kept"):
        pair.trusted.stamp(Kind.CHECKPOINT, Step(0, 1))
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(0, 0))
    with pytest.raises(SessionError, match="saved of step 0 has step 0 kept"):
        pair.compute.stamp(Kind.SAVED, Step(0, 0))
    pair.say(Role.COMPUTE, Kind.SAVED, Step(0))


def test_without_that_agreed_no_step_may_be_left_out() -> None:
    pair = Pair().open(offer(mode="features", back=False))
    with pytest.raises(SessionError, match="expected the activation of step 0"):
        pair.trusted.stamp(Kind.ACTIVATION, tensor(0, of=1, step=1))


def going_on(width: int, *lengths: int, packed: bool = False, of: int = 1) -> StepTensor:
    return StepTensor(0, 0, of, "generate", width, packed, lengths, 0)


def generating() -> Pair:
    """Two texts of four tokens and one more each."""
    pair = Pair().open(offer(purpose="generate"))
    for meta in (going_on(4, 4, 4), going_on(1, 5, 5)):
        pair.say(Role.TRUSTED, Kind.ACTIVATION, meta)
        pair.say(Role.COMPUTE, Kind.OUTPUT, msgspec.structs.replace(meta, lengths=()))
    return pair


@pytest.mark.parametrize(
    "meta", [going_on(1, 6, 6), going_on(3, 8, 8), going_on(2, 2), going_on(5, 5, 5, 5)], ids=str
)
def test_a_text_is_gone_on_with_where_it_stopped_or_another_begins(meta: StepTensor) -> None:
    pair = generating()
    pair.settle()
    pair.say(Role.TRUSTED, Kind.ACTIVATION, meta)
    assert pair.trusted.next_step == pair.compute.next_step == 0


@pytest.mark.parametrize(
    "meta",
    [
        going_on(1, 5, 5),  # again
        going_on(1, 7, 7),  # one left out
        going_on(1, 6),  # one text of two
        going_on(1, 6, 6, 6),
        going_on(1, 6, 7),  # of different length
        going_on(3, 2, 2),  # more new ones than there are
        going_on(1, 6, 6, packed=True),
        going_on(1, 6, 6, of=2),
        going_on(1),
    ],
    ids=str,
)
def test_who_lies_about_what_the_peer_has_of_a_text_is_refused(meta: StepTensor) -> None:
    pair = generating()
    with pytest.raises(SessionError, match=r"2 texts of 5 tokens were there|expected"):
        pair.compute.check(Kind.ACTIVATION, meta, seq=pair.compute.next_in)
    with pytest.raises(SessionError):
        pair.trusted.stamp(Kind.ACTIVATION, meta)


@pytest.mark.parametrize(
    ("purpose", "phase"),
    [
        ("train", "generate"),
        ("evaluate", "generate"),
        ("generate", "train"),
        ("generate", "evaluate"),
    ],
)
def test_texts_are_gone_on_with_in_a_run_offered_to_generate_and_nothing_else_is_done(
    purpose: str, phase: str
) -> None:
    pair = Pair().open(offer(purpose=purpose))
    meta = going_on(4, 4, 4) if phase == "generate" else tensor(0, phase=phase)
    with pytest.raises(SessionError, match=f"{phase}|training"):
        pair.compute.check(Kind.ACTIVATION, meta, seq=pair.compute.next_in)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Kind.ACTIVATION, {"memory": Memory(9, (9,))}),
        (Kind.ACTIVATION, {"memory": Memory(9, ())}),
        (Kind.ACTIVATION, {"memory": Memory(9, (9, 9)), "packed": False}),
        (Kind.ACTIVATION, {"memory": Memory(9, (9, 9)), "phase": "generate"}),
        (Kind.OUTPUT, {"memory": Memory(9, (9, 9))}),
        (Kind.GRADIENT, {"memory": Memory(9, (9, 9)), "lengths": ()}),
        (Kind.INPUT_GRADIENT, {"memory": Memory(9, (9, 9)), "lengths": ()}),
    ],
    ids=[
        *("a text too few", "no texts", "with padding", "packed to go on"),
        *("output", "gradient", "input gradient"),
    ],
)
def test_a_memory_has_a_text_for_each_of_the_decoders_and_stands_where_it_has_a_use(
    kind: Kind, changes: dict[str, Any]
) -> None:
    who = Role.TRUSTED if kind in {Kind.ACTIVATION, Kind.GRADIENT} else Role.COMPUTE
    pair = Pair().open()
    legal = msgspec.structs.replace(tensor(0, of=1), memory=Memory(9, (9, 9)))
    back = msgspec.structs.replace(tensor(0, of=1), lengths=(), memory=Memory(9, ()))
    before = {
        Kind.ACTIVATION: legal,
        Kind.OUTPUT: tensor(0, of=1),
        Kind.GRADIENT: back,
        Kind.INPUT_GRADIENT: back,
    }
    for earlier, meta in before.items():
        speaker = Role.TRUSTED if earlier in {Kind.ACTIVATION, Kind.GRADIENT} else Role.COMPUTE
        if earlier is kind:
            break
        pair.say(speaker, earlier, meta)
    with pytest.raises(SessionError, match="padding never travels with it"):
        pair.say(who, kind, msgspec.structs.replace(tensor(0, of=1), **changes))


def test_texts_that_begin_come_with_a_memory_and_their_next_tokens_without() -> None:
    pair = Pair().open(offer(purpose="generate"))
    beside = Memory(9, (9, 7))
    pair.say(
        Role.TRUSTED, Kind.ACTIVATION, msgspec.structs.replace(going_on(1, 1, 1), memory=beside)
    )
    pair.say(Role.COMPUTE, Kind.OUTPUT, msgspec.structs.replace(going_on(1), lengths=()))
    again = msgspec.structs.replace(going_on(1, 2, 2), memory=beside)
    with pytest.raises(SessionError, match="only their first has one"):
        pair.compute.check(Kind.ACTIVATION, again, seq=pair.compute.next_in)
    with pytest.raises(SessionError, match="only their first has one"):
        pair.trusted.stamp(Kind.ACTIVATION, again)


def test_a_whole_step_with_a_memory_is_legal() -> None:
    pair = Pair().open()
    beside = Memory(9, (9, 9))
    pair.say(Role.TRUSTED, Kind.ACTIVATION, msgspec.structs.replace(tensor(0, of=1), memory=beside))
    bare = msgspec.structs.replace(tensor(0, of=1), lengths=())
    pair.say(Role.COMPUTE, Kind.OUTPUT, bare)
    for who, kind in ((Role.TRUSTED, Kind.GRADIENT), (Role.COMPUTE, Kind.INPUT_GRADIENT)):
        pair.say(who, kind, msgspec.structs.replace(bare, memory=Memory(9, ())))
    assert pair.trusted.next_step == pair.compute.next_step == 1


NEIGHBOUR = Neighbour("farm", "b" * 32, "e" * 64)
FIRST, MIDDLE, LAST = Hops(None, NEIGHBOUR), Hops(NEIGHBOUR, NEIGHBOUR), Hops(NEIGHBOUR, None)


def beside(hops: Hops, **terms: Any) -> Offer:
    """An offer to a party of a direct chain."""
    return msgspec.structs.replace(offer(**terms), detail=Detail(hops=hops))


def test_the_first_party_of_a_direct_chain_is_sent_rows_and_gives_gradients_back() -> None:
    pair = Pair().open(beside(FIRST))
    for step in range(2):
        for i in range(2):
            pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(i, step=step))
        for i in range(2):
            pair.say(Role.COMPUTE, Kind.INPUT_GRADIENT, tensor(i, step=step))
    assert pair.trusted.next_step == pair.compute.next_step == 2
    pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, of=1, step=2, phase="evaluate"))
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(2))
    with pytest.raises(SessionError, match="output for train step 2"):
        Pair().open(beside(FIRST), step=2).say(Role.COMPUTE, Kind.OUTPUT, tensor(0, step=2))


@pytest.mark.parametrize("terms", [{"back": False}, {"mode": "features", "back": False}])
def test_where_its_bottom_stands_still_the_first_party_is_only_sent_rows(
    terms: dict[str, Any],
) -> None:
    pair = Pair().open(beside(FIRST, **terms))
    for step in range(2):
        for i in range(2):
            pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(i, step=step))
    assert pair.compute.next_step == 2
    with pytest.raises(SessionError, match="expected the activation of step 2"):
        pair.say(Role.COMPUTE, Kind.INPUT_GRADIENT, tensor(0, step=1))


def test_the_last_party_of_a_direct_chain_gives_rows_and_is_sent_gradients() -> None:
    pair = Pair().open(beside(LAST))
    for i in range(2):
        pair.say(Role.COMPUTE, Kind.OUTPUT, tensor(i))
        pair.say(Role.TRUSTED, Kind.GRADIENT, tensor(i))
    assert pair.trusted.next_step == pair.compute.next_step == 1
    with pytest.raises(SessionError, match="expected the output of step 1"):
        pair.say(Role.TRUSTED, Kind.ACTIVATION, tensor(0, step=1))
    still = Pair().open(beside(LAST, mode="features", back=False))
    still.say(Role.COMPUTE, Kind.OUTPUT, tensor(0, of=1))
    with pytest.raises(SessionError, match="gradient"):
        still.say(Role.TRUSTED, Kind.GRADIENT, tensor(0, of=1))


def test_with_a_party_in_the_middle_no_tensor_is_exchanged_and_checkpoints_name_the_step() -> None:
    pair = Pair().open(beside(MIDDLE))
    pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(4))
    pair.say(Role.COMPUTE, Kind.SAVED, Step(4))
    pair.settle()
    with pytest.raises(SessionError, match="names step 3"):
        pair.say(Role.TRUSTED, Kind.CHECKPOINT, Step(3))
    for who, kind in ((Role.TRUSTED, Kind.ACTIVATION), (Role.COMPUTE, Kind.OUTPUT)):
        with pytest.raises(SessionError, match="expected no tensor here of step 0"):
            Pair().open(beside(MIDDLE)).say(who, kind, tensor(0))


@pytest.mark.parametrize(
    "offered",
    [
        beside(Hops(None, None)),
        beside(FIRST, staleness=1, back=False),
        beside(FIRST, mode="side", back=False),
        beside(LAST, purpose="generate"),
        msgspec.structs.replace(offer(), detail=Detail(hops=FIRST, clips=True)),
        msgspec.structs.replace(offer(mode="features"), detail=Detail(hops=FIRST, repeats=True)),
    ],
)
def test_neighbours_are_for_exact_steps_only(offered: Offer) -> None:
    with pytest.raises(SessionError, match="names neighbours; what goes straight"):
        Session(Role.TRUSTED, Role.COMPUTE).stamp(Kind.OFFER, offered)
    with pytest.raises(SessionError, match="names neighbours; what goes straight"):
        Session(Role.COMPUTE, Role.TRUSTED).check(Kind.OFFER, offered, seq=1)
