"""What engines tell while a real run goes on: plain facts, in the order in which they come true."""

import dataclasses
from pathlib import Path
from typing import get_args

import pytest

from splitlearn.channel import pair
from splitlearn.engine.events import (
    Answered,
    Began,
    Evaluated,
    Event,
    Finished,
    Saved,
    SentWeights,
    StepDone,
    all_of,
)
from splitlearn.split.cut import Cut
from tests.rig import (
    ComputeThread,
    batch_of,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model


def test_both_parties_tell_what_happens_in_order(tmp_path: Path) -> None:
    model = tiny_model("bert")
    batch = batch_of(tiny_batch(model))
    run = trusted_run(model, cut=Cut(1, 3), total=3, every=2)
    trusted, compute = [], []
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs, observe=compute.append)
    engine = trusted_engine(run, trusted_party(tmp_path), ours, observe=trusted.append)
    engine.train(lambda _: [batch])
    engine.evaluate([batch, batch])
    engine.finish()
    thread.join(20)

    steps = [event for event in trusted if isinstance(event, StepDone)]
    assert [event.step for event in steps] == [0, 1, 2]
    assert [event.loss for event in steps] == engine.losses
    assert all(event.sent_bytes > 0 and event.received_bytes > 0 for event in steps)
    assert trusted == [
        SentWeights(0, 1),
        Began(0, "compute"),
        steps[0],
        steps[1],
        Saved(2),
        steps[2],
        Saved(3),
        Evaluated(1),
        Evaluated(2),
        Finished(3),
    ]
    assert compute == [
        Began(0, "trusted"),
        Answered(0),
        Answered(1),
        Saved(2),
        Answered(2),
        Saved(3),
        Finished(3),
    ]


def test_a_steps_bytes_are_those_of_its_own_frames(tmp_path: Path) -> None:
    model = tiny_model("bert")
    batch = batch_of(tiny_batch(model))
    run = trusted_run(model, cut=Cut(1, 3), total=2, every=9)
    told: list[Event] = []
    ours, theirs = pair()
    ComputeThread(compute_party(tmp_path), theirs)
    engine = trusted_engine(run, trusted_party(tmp_path), ours, observe=told.append)
    engine.train(lambda _: [batch])
    rows = sum(batch.lengths) * 32 * 4  # an activation and a gradient, float32, packed
    for event in told:
        if isinstance(event, StepDone):
            assert 2 * rows < event.sent_bytes < 2 * rows + 1000
            assert 2 * rows < event.received_bytes < 2 * rows + 1000


@pytest.mark.parametrize("kind", get_args(Event))
def test_an_event_is_frozen_and_holds_numbers_and_names_only(kind: type) -> None:
    assert {field.type for field in dataclasses.fields(kind)} <= {
        int,
        float,
        str,
        float | None,
    }
    event = kind(**dict.fromkeys((field.name for field in dataclasses.fields(kind)), 0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, dataclasses.fields(kind)[0].name, 1)


def test_several_observers_are_told_in_turn_and_one_that_raises_is_heard() -> None:
    told: list[tuple[str, Event]] = []
    tell = all_of(
        lambda event: told.append(("first", event)), lambda event: told.append(("second", event))
    )
    tell(Saved(2))
    assert told == [("first", Saved(2)), ("second", Saved(2))]
    all_of()(Saved(3))

    def raising(_: Event) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        all_of(raising, lambda event: told.append(("third", event)))(Saved(4))
    assert len(told) == 2
