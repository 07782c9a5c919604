"""The decoder party's loop over real gates, logs and sessions: codecs, kept rows, restarts, logs."""

from dataclasses import replace
from pathlib import Path

import pytest

from parties.auditor import judge_of
from splitlearn import audit
from splitlearn.engine.events import Event, Finished, RolledBack, StepDone
from splitlearn.engine.pair.decoding import DecoderEngine
from splitlearn.engine.pair.pairing import Corpus
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind, Role
from splitlearn.translation.text import Sentences
from splitlearn.wire.messages import Pairing, ScheduleSpec
from tests.pairs import Meeting, terms, tokenizer


def trained(
    folder: Path, wanted: Pairing, *, cache_bytes: int = 2**20
) -> tuple[Meeting, DecoderEngine]:
    meeting = Meeting(folder)
    meeting.serve()
    engine = meeting.decode(wanted, cache_bytes=cache_bytes)
    engine.train()
    assert len(engine.translate()) == 6
    engine.finish()
    meeting.close()
    assert not meeting.failures
    return meeting, engine


@pytest.mark.parametrize(
    ("activation", "gradient"), [("int8+zstd", "int4-g64"), ("fp16", "int8"), ("svd-0.4", "fp16")]
)
def test_codecs_write_fewer_bytes_and_training_goes_on(
    tmp_path: Path, activation: str, gradient: str
) -> None:
    plain = trained(tmp_path / "plain", terms())[1]
    coded = trained(tmp_path / "coded", terms(activation=activation, gradient=gradient))[1]
    assert coded.received[Kind.ACTIVATION] < 0.75 * plain.received[Kind.ACTIVATION]
    assert coded.sent[Kind.GRADIENT] < 0.75 * plain.sent[Kind.GRADIENT]
    assert coded.losses != plain.losses
    assert max(abs(a - b) for a, b in zip(coded.losses, plain.losses, strict=True)) < 0.3


def test_both_logs_verify_and_agree_message_by_message(tmp_path: Path) -> None:
    trained(tmp_path, terms(activation="int8", gradient="int8"))
    both = audit.reconcile(
        tmp_path / "decoder" / "audit", tmp_path / "encoder" / "audit", judge_of=judge_of
    )
    assert both.exit == audit.Exit.CLEAN
    found = both.here.messages_by_kind
    assert found["out gradient"] == 10
    assert found["in activation"] == 11  # ten steps, and all held-out samples at once
    assert found["in samples"] == found["out samples"] == 1


def test_the_link_falls_silent_once_a_still_encoder_has_answered_for_all(tmp_path: Path) -> None:
    schedule = ScheduleSpec("inverse_sqrt", 4, 12)
    meeting, _ = trained(tmp_path, terms(trains=False, schedule=schedule))
    said = [event for event in meeting.events if isinstance(event, StepDone | Finished)]
    # 23 samples in common: five batches of up to five, then goodbye, then seven steps alone.
    assert [isinstance(event, Finished) for event in said].index(True) == 5
    alone = [event for event in said[6:] if isinstance(event, StepDone)]
    assert len(alone) == 7
    assert all(event.sent_bytes == event.received_bytes == 0 for event in alone)


def test_rows_without_room_are_asked_for_again_and_give_the_same(tmp_path: Path) -> None:
    wanted = terms(trains=False)
    kept = trained(tmp_path / "kept", wanted)[1]
    asked = trained(tmp_path / "asked", wanted, cache_bytes=12_000)[1]
    assert asked.losses == kept.losses
    assert asked.received[Kind.ACTIVATION] > kept.received[Kind.ACTIVATION]


class _Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("trains", [True, False])
def test_a_decoder_that_is_killed_goes_on_with_the_same_numbers(
    tmp_path: Path, trains: bool
) -> None:
    wanted = terms(trains=trains)
    undisturbed = trained(tmp_path / "plain", wanted)[1]
    meeting = Meeting(tmp_path / "killed")
    meeting.serve()
    at = 7 if trains else 3

    def kill(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == at:
            raise _Killed

    engine = meeting.decode(wanted, every=2, observe=kill)
    with pytest.raises(_Killed) as caught:
        engine.train()
    engine.end(caught.value)
    meeting.restart(Role.DECODER)
    engine = meeting.decode(wanted, every=2)
    engine.train()
    engine.finish()
    meeting.close()
    assert engine.losses == undisturbed.losses


def test_an_encoder_that_is_killed_costs_time_only(tmp_path: Path) -> None:
    wanted = terms()
    undisturbed = trained(tmp_path / "plain", wanted)[1]
    meeting = Meeting(tmp_path / "killed")
    meeting.serve()
    killed: list[int] = []

    def kill(event: Event) -> None:
        meeting.events.append(event)
        if isinstance(event, StepDone) and event.step == 6 and not killed:
            killed.append(event.step)
            meeting.restart(Role.ENCODER)

    engine = meeting.decode(wanted, observe=kill)
    engine.train()
    engine.finish()
    meeting.close()
    assert not meeting.failures
    assert any(isinstance(event, RolledBack) for event in meeting.events)
    assert engine.losses == undisturbed.losses


@pytest.mark.parametrize("what", ["train on", "hold out"])
def test_samples_of_other_names_are_told_before_training(tmp_path: Path, what: str) -> None:
    meeting = Meeting(tmp_path)
    meeting.serve()
    engine = meeting.decode(terms())
    other = Sentences({"x1": "w1 w2"}, tokenizer=tokenizer(), max_length=16)
    mine = engine.run.corpus
    corpus = Corpus(other, mine.evaluate) if what == "train on" else Corpus(mine.train, other)
    engine.run = replace(engine.run, corpus=corpus)
    with pytest.raises(ManifestError, match=f"of our 1 samples to {what} .* has none"):
        engine.train()
    engine.end(None)
    meeting.ends[1].close()
    meeting.close()
    assert not engine.losses
