"""Generators that die, fall silent and come back: the round goes on, within its deadline."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from splitlearn.engine.streams.rounds import Joined, Left, RoundEvent, Trained
from splitlearn.errors import AuditError
from splitlearn.wire.ids import IdBatch
from tests.streaming import Digester, Hall, Numbers, terms


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    hall = Hall(tmp_path)
    yield hall
    hall.close()


@dataclass
class Stopping(Numbers):
    """Stands still before one of its batches, until it is let go on."""

    at: int = 3

    def __post_init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    def step(self) -> tuple[IdBatch, float]:
        if self.index == self.at:
            self.reached.set()
            self.let_go.wait(20)
        return super().step()


def languages(events: list[RoundEvent]) -> list[str]:
    return [event.language for event in events if isinstance(event, Trained)]


def test_a_silent_generator_loses_its_turns_and_the_round_is_whole(hall: Hall) -> None:
    stuck = Stopping(2)
    engine = hall.discriminator(Digester(), wanted=terms(steps=40, least=2, silence_s=0.4))
    hall.generate("ana", "en", Numbers(1))
    hall.generate("bo", "sw", stuck)
    progress = engine.round()
    assert progress.step == 40
    trained = languages(hall.events)
    assert trained.count("sw") == 3
    assert "sw" not in trained[-20:]
    left = [event for event in hall.events if isinstance(event, Left)]
    assert left[0].party == "bo"
    assert "nothing came for 0 s; it may come back" in left[0].why
    stuck.let_go.set()


def test_a_silent_generator_that_speaks_again_is_trained_on_again(hall: Hall) -> None:
    stuck = Stopping(2)
    slow = Numbers(1, slow_s=0.01)

    def watch(event: RoundEvent) -> None:
        hall.events.append(event)
        if isinstance(event, Left):
            stuck.let_go.set()

    engine = hall.discriminator(
        Digester(), wanted=terms(steps=80, least=2, silence_s=0.4), watch=watch
    )
    hall.generate("ana", "en", slow)
    hall.generate("bo", "sw", stuck)
    assert engine.round().step == 80
    back = [type(event) for event in hall.events if getattr(event, "party", "") == "bo"]
    assert back[:3] == [Joined, Left, Joined]
    assert languages(hall.events).count("sw") > 10
    hall.join()
    assert hall.failures == {}
    # Nothing twice, nothing left out.
    assert stuck.made == list(range(len(stuck.made)))


def test_a_killed_generator_that_comes_back_goes_on_behind_what_was_taken(hall: Hall) -> None:
    first = Stopping(2)
    learner = Digester()
    engine = hall.discriminator(learner, wanted=terms(steps=60, least=2, silence_s=5.0))
    hall.generate("ana", "en", Numbers(1, slow_s=0.005))
    hall.generate("bo", "sw", first)

    def kill() -> None:
        first.reached.wait(10)
        theirs, _ = hall.ends["bo"]
        fresh = theirs.restart()  # the process is gone, with all that it had made
        hall.generate("bo", "sw", Numbers(2), channel=fresh)
        first.let_go.set()

    killer = threading.Thread(target=kill)
    killer.start()
    assert engine.round().step == 60
    killer.join()
    hall.join()
    taken = [index for whose, index in learner.seen if whose == 2]
    assert taken == sorted(set(taken))
    assert len(taken) > 10
    assert hall.reports.keys() == {"ana", "bo"}


def test_a_killed_generator_that_dials_anew_takes_its_old_place(hall: Hall) -> None:
    first = Stopping(2)
    learner = Digester()
    engine = hall.discriminator(learner, wanted=terms(steps=60, least=2, silence_s=5.0))
    hall.generate("ana", "en", Numbers(1, slow_s=0.005))
    hall.generate("bo", "sw", first)

    def kill() -> None:
        first.reached.wait(10)
        hall.ends["bo"][0].close()
        first.let_go.set()
        hall.generate("bo", "sw", Numbers(2))

    killer = threading.Thread(target=kill)
    killer.start()
    assert engine.round().step == 60
    killer.join()
    taken = [index for whose, index in learner.seen if whose == 2]
    assert taken == sorted(set(taken))
    assert len(taken) > 10


def test_a_newcomer_in_the_middle_of_a_round_takes_part_in_the_rest(hall: Hall) -> None:
    def watch(event: RoundEvent) -> None:
        hall.events.append(event)
        if isinstance(event, Trained) and event.step == 10:
            hall.generate("bo", "sw", Numbers(2))

    engine = hall.discriminator(Digester(), wanted=terms(steps=60, least=1), watch=watch)
    hall.generate("ana", "en", Numbers(1, slow_s=0.01))
    assert engine.round().step == 60
    assert languages(hall.events)[:10] == ["en"] * 10
    assert languages(hall.events).count("sw") > 10


def test_a_round_ends_at_its_deadline_whatever_is_missing(hall: Hall) -> None:
    wanted = terms(steps=10_000, least=1, deadline_s=1.0, held_out=1)
    engine = hall.discriminator(Digester(), wanted=wanted)
    hall.generate("ana", "en", Numbers(1, slow_s=0.05))
    began_s = time.monotonic()
    progress = engine.round()
    assert 0 < progress.step < 30
    assert (progress.round, progress.in_round) == (1, 0)
    assert time.monotonic() - began_s < 6
    hall.join()
    assert hall.reports["ana"].batches >= progress.step


def test_a_log_that_cannot_be_written_stops_the_run_and_no_checkpoint_hides_it(hall: Hall) -> None:
    def watch(event: RoundEvent) -> None:
        if isinstance(event, Trained) and event.step == 6:
            for log in [log for folder, log in hall._logs.items() if "hub" in folder.parts]:
                log.close()

    engine = hall.discriminator(Digester(), wanted=terms(steps=400, least=2), watch=watch)
    hall.generate("ana", "en", Numbers(1))
    hall.generate("bo", "sw", Numbers(2))
    with pytest.raises(AuditError, match="takes no more records"):
        engine.round()
    assert engine.progress.step < 400


def test_twenty_joins_and_leaves_in_a_row_leave_the_right_members(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(steps=4, least=2, gather_s=0.0))
    for number in range(20):
        hall.generate("ana", "en", Numbers(1))
        party = f"guest-{number % 3}"
        hall.generate(party, f"l{number % 3}", Numbers(number % 3 + 2))
        progress = engine.round()
        hall.join()
        assert hall.failures == {}
    assert set(progress.members) <= {"ana", "guest-0", "guest-1", "guest-2"}
    assert progress.step == 80
    assert sum(member.batches for member in progress.members.values()) == 80
