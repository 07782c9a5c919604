"""A generator's side of a round: what it is told, what it sends, what it keeps."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitlearn import audit
from splitlearn.audit import Payload, read_records
from splitlearn.audit.records import RunClose
from splitlearn.engine.streams.rounds import Trained
from splitlearn.errors import ChannelError
from tests.streaming import Digester, Hall, Numbers, terms


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    hall = Hall(tmp_path)
    yield hall
    hall.close()


def test_nothing_flows_back_but_settings_counts_and_signatures(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(least=1))
    hall.generate("ana", "en", Numbers(1))
    engine.round()
    hall.join()
    came = [
        record.kind.value
        for _, record in read_records(hall.folder / "ana" / "audit-hub")
        if isinstance(record, Payload) and record.direction == "in"
    ]
    assert set(came) == {"round", "ask", "enough", "settled", "closed"}


def test_both_logs_verify_and_reconcile_over_many_settlements(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(steps=300, least=2))
    hall.generate("ana", "en", Numbers(1))
    hall.generate("bo", "sw", Numbers(2))
    engine.round()
    hall.close()
    assert hall.failures == {}
    for party in ("ana", "bo"):
        ours, theirs = hall.folder / party / "audit-hub", hall.folder / "hub" / f"audit-{party}"
        for log in (ours, theirs):
            assert audit.verify(log).exit == 0
        report = audit.reconcile(ours, theirs)
        assert report.exit == 0
        settled = [
            r for _, r in read_records(ours) if isinstance(r, Payload) and r.kind == "settle"
        ]
        assert len(settled) >= 2


def test_a_log_says_which_ids_went_where_and_not_one_of_them(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(least=1))
    hall.generate("ana", "en", Numbers(1))
    engine.round()
    hall.join()
    records = [r for _, r in read_records(hall.folder / "ana" / "audit-hub")]
    batches = [r for r in records if isinstance(r, Payload) and r.kind == "ids"]
    first = batches[0]
    assert (first.codec, first.rows, first.examples, first.longest) == ("ids-10", 16, 2, 9)
    assert [(part.name, part.dtype) for part in first.parts] == [("ids", "U8"), ("replaced", "U8")]
    assert [r.step for r in batches if r.phase == "train"] == list(range(12))
    assert [r.outcome for r in records if isinstance(r, RunClose)] == ["done"]


def test_it_goes_on_when_the_discriminator_comes_back_as_a_new_process(hall: Hall) -> None:
    """Killed in the middle of a round: what lies in the checkpoint is gone on from, nothing comes twice."""
    killed = threading.Event()
    source = Numbers(1, slow_s=0.005)

    class KilledError(Exception):
        pass

    def watch(event: object) -> None:
        if isinstance(event, Trained) and event.step == 18:
            killed.set()
            raise KilledError

    first = Digester()
    engine = hall.discriminator(first, wanted=terms(steps=40, least=1), watch=watch)
    hall.generate("ana", "en", source)
    ours = hall.ends["ana"][1]
    # The old process's threads die with it; here they are cut off from the channel first.
    arrival_of_old = hall.queue.queue[0] if hall.queue.qsize() else None
    with pytest.raises(KilledError):
        engine.round()
    assert killed.is_set()
    assert arrival_of_old is None or arrival_of_old.channel is ours
    second = Digester()
    again = hall.discriminator(second, wanted=terms(steps=40, least=1))
    assert second.steps == 15
    hall.join()  # the old conversation was closed, so the generator has ended
    hall.generate("ana", "en", source)
    progress = again.round()
    assert progress.step == 40
    assert second.seen[0][1] >= 18
    indices = [index for _, index in second.seen]
    assert indices == sorted(set(indices))


def test_what_it_has_to_keep_is_kept_when_due_and_at_the_end(hall: Hall) -> None:
    from splitlearn.engine.streams.generator import GeneratorEngine
    from splitlearn.identity import PartyName
    from splitlearn.roles import Role
    from tests.streaming import DIGEST, HUB

    kept: list[int] = []
    channel = hall.connect("ana")
    name = PartyName(federation="example.org", party="ana", role=Role.GENERATOR)
    generator = GeneratorEngine(
        channel,
        language="en",
        vocabulary_digest=DIGEST,
        batches=lambda _: Numbers(1),
        open_gate=hall.open_gate(me=name, peer=HUB),
        save=lambda source: kept.append(source.index),
        deadline_s=20.0,
        save_every=5,
    )
    thread = threading.Thread(target=generator.serve)
    thread.start()
    hall.discriminator(Digester(), wanted=terms(least=1)).round()
    thread.join(10)
    assert kept == [5, 10, 12]


def test_a_discriminator_that_never_speaks_is_an_error_that_names_it(hall: Hall) -> None:
    from splitlearn.engine.streams.generator import GeneratorEngine

    channel = hall.connect("ana")
    engine = GeneratorEngine(
        channel,
        language="en",
        vocabulary_digest="a" * 64,
        batches=lambda _: Numbers(1),
        open_gate=lambda *_: pytest.fail("nothing came"),
        save=lambda _: None,
        deadline_s=0.2,
    )
    with pytest.raises(ChannelError, match=r"discriminator\.hub\.example\.org sent nothing"):
        engine.serve()
