"""Rounds in one process: who is trained on when, what a checkpoint holds, who may leave whom alone."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitlearn.engine.streams.rounds import Kept, Scored, Trained
from splitlearn.errors import ChannelError, ManifestError
from splitlearn.pretrain import draw, shares
from tests.streaming import Digester, Hall, Numbers, terms

LANGUAGES = {"ana": "en", "bo": "sw", "chi": "zh"}


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    hall = Hall(tmp_path)
    yield hall
    hall.close()


def sources(**sizes: int) -> dict[str, Numbers]:
    return {
        party: Numbers(number, size=sizes.get(party, 1_000))
        for number, party in enumerate(LANGUAGES)
    }


def everybody(hall: Hall, found: dict[str, Numbers]) -> None:
    for party, source in found.items():
        hall.generate(party, LANGUAGES[party], source)


def test_a_round_trains_on_the_language_that_seed_and_step_draw(hall: Hall) -> None:
    found, learner = sources(ana=8_000, bo=1_000, chi=1_000), Digester()
    engine = hall.discriminator(learner, wanted=terms(steps=30))
    everybody(hall, found)
    progress = engine.round()
    chances = shares({"en": 8_000, "sw": 1_000, "zh": 1_000}, alpha=0.5)
    expected = [draw(chances, seed=1, step=step) for step in range(30)]
    trained = [event.language for event in hall.events if isinstance(event, Trained)]
    assert trained == expected
    assert (progress.step, progress.round, progress.in_round) == (30, 1, 0)
    # Each stream's batches in their own order, none left out, and no more made than were needed.
    counts = Counter(expected)
    for number, party in enumerate(LANGUAGES):
        count = counts[LANGUAGES[party]]
        assert [index for whose, index in learner.seen if whose == number] == list(range(count))
        assert found[party].made == list(range(count))


def test_each_language_is_scored_on_its_own_held_out_text(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms())
    everybody(hall, sources())
    progress = engine.round()
    scored = {e.language: e for e in hall.events if isinstance(e, Scored)}
    assert scored.keys() == {"en", "sw", "zh"}
    assert {(s.auc, s.tokens) for s in scored.values()} == {(0.9, 32)}
    assert progress.history[0]["scores"].keys() == scored.keys()  # type: ignore[attr-defined]


def test_reports_reach_the_record_of_members_and_both_ends_logs_are_closed(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms())
    everybody(hall, sources())
    progress = engine.round()
    hall.join()
    assert hall.failures == {}
    for number, party in enumerate(LANGUAGES):
        member, report = progress.members[party], hall.reports[party]
        assert (member.batches, member.tokens) == (report.batches, report.tokens)
        assert member.loss == report.loss == pytest.approx(3.0 + number)


def test_the_mix_follows_the_generators_losses_where_the_job_says_so(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(by="loss", alpha=1.0))
    everybody(hall, sources())
    engine.round()
    hall.join()
    hall.events.clear()
    everybody(hall, sources())
    engine.round()
    chances = shares({"en": 3.0, "sw": 4.0, "zh": 5.0}, alpha=1.0)
    trained = [event.language for event in hall.events if isinstance(event, Trained)]
    assert trained == [draw(chances, seed=1, step=step) for step in range(12, 24)]


def test_two_rounds_are_the_same_to_the_bit_however_slow_a_generator_is(tmp_path: Path) -> None:
    states = []
    for slow_s in (0.0, 0.02):
        hall, learner = Hall(tmp_path / f"{slow_s}"), Digester()
        engine = hall.discriminator(learner, wanted=terms())
        found = sources()
        found["bo"].slow_s = slow_s
        for _ in range(2):
            everybody(hall, found)
            engine.round()
            hall.join()
        hall.close()
        states.append(learner.state)
    assert states[0] == states[1]


def test_a_discriminator_goes_on_from_its_checkpoint_and_takes_no_batch_twice(hall: Hall) -> None:
    found = sources()
    first = Digester()
    engine = hall.discriminator(first, wanted=terms())
    everybody(hall, found)
    before = engine.round()
    hall.join()
    second = Digester()
    again = hall.discriminator(second, wanted=terms())
    assert (second.state, second.steps) == (first.state, 12)
    assert again.progress == before
    everybody(hall, sources())  # these begin at 0 and are told to go on
    again.round()
    assert not set(first.seen) & set(second.seen)


def test_a_checkpoint_that_was_changed_on_disk_is_not_gone_on_from(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms())
    everybody(hall, sources())
    engine.round()
    place = max((hall.folder / "hub" / "checkpoints").iterdir(), key=lambda p: int(p.name))
    state = place / "learner" / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"', b'"0', 1))
    with pytest.raises(ManifestError, match="not the one that was saved"):
        hall.discriminator(Digester(), wanted=terms())


def test_another_jobs_folder_is_refused(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms())
    everybody(hall, sources())
    engine.round()
    with pytest.raises(ManifestError, match="another job"):
        hall.discriminator(Digester(), wanted=terms(job="e" * 64))


def test_checkpoints_come_when_they_are_due(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(save_every=5))
    everybody(hall, sources())
    engine.round()
    assert [event.step for event in hall.events if isinstance(event, Kept)] == [5, 10, 12]


def test_too_few_generators_are_an_error_that_says_so(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(least=4, deadline_s=1.0))
    everybody(hall, sources())
    with pytest.raises(ChannelError, match="3 generators came to round 0; 4 are needed"):
        engine.round()
