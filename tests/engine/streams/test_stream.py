"""A generator that breaks a rule is cut off with a record, and the others don't notice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from splitlearn.audit import read_records
from splitlearn.audit.records import Denied
from splitlearn.channel.base import Released
from splitlearn.engine.streams.rounds import Left
from splitlearn.errors import ChannelError, PeerError, SplitLearnError
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.policy import load
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames, tensors
from splitlearn.wire.ids import IdBatch, pack
from splitlearn.wire.messages import Ask, Empty, Enlist, Ids, Meta, Report, Round, Shard
from splitlearn.wire.tensors import Part
from tests.rig import POLICIES
from tests.streaming import DIGEST, HUB, VOCABULARY, Digester, Hall, Numbers, terms


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    hall = Hall(tmp_path)
    yield hall
    hall.close()


@dataclass
class Rogue:
    """A generator that writes its frames itself, as it likes."""

    hall: Hall
    party: str = "mallory"
    language: str = "xx"
    digest: str = DIGEST
    seq: int = 0
    heard: list[Kind] = field(default_factory=list)
    error: SplitLearnError | None = None

    def __post_init__(self) -> None:
        self.channel = self.hall.connect(self.party)

    def frame(self, kind: Kind, meta: Meta, payload: bytes = b"", *, seq: int = 0) -> None:
        self.seq += 1
        raw = frames.encode(kind, seq=seq or self.seq, meta=meta, payload=payload)
        self.channel.send(Released(kind=kind, seq=self.seq, raw=raw), deadline_s=5)

    def ids(self, index: int, *, parts: tuple[Part, ...] | None = None, examples: int = 2) -> None:
        batch = IdBatch(
            np.zeros(3 * examples, np.int32), np.zeros(3 * examples, bool), (3,) * examples
        )
        payload = tensors.encode(pack(batch, vocabulary=VOCABULARY) if parts is None else parts)
        self.frame(Kind.IDS, Ids(index, "train", batch.lengths), payload)

    def begin(self) -> None:
        """Up to the first batch that was asked for."""
        assert isinstance(self.channel.receive(timeout_s=5).meta, Round)
        self.frame(Kind.ENLIST, Enlist(self.language, self.digest, 1_000, 0, 0))
        while True:
            meta = self.channel.receive(timeout_s=5).meta
            if isinstance(meta, Ask) and meta.train:
                return

    def told(self) -> str:
        """What the discriminator said when it cut this one off."""
        try:
            while True:
                self.heard.append(self.channel.receive(timeout_s=5).kind)
        except (PeerError, ChannelError) as error:
            return str(error)


def out_of_range(rogue: Rogue) -> None:
    ids = IdBatch(np.full(6, 1_020, np.int32), np.zeros(6, bool), (3, 3))
    rogue.ids(0, parts=pack(ids, vocabulary=1_024))


def floats(rogue: Rogue) -> None:
    rogue.ids(0, parts=(Part("ids", "F32", (6,), bytes(24)), Part("replaced", "U8", (1,), b"\0")))


def hidden_states(rogue: Rogue) -> None:
    rogue.frame(Kind.WEIGHTS, Shard(0, 1), tensors.encode([Part("x", "F32", (6,), bytes(24))]))


def too_large(rogue: Rogue) -> None:
    rogue.ids(0, examples=5)


def too_many(rogue: Rogue) -> None:
    for index in range(200):
        rogue.ids(index)


def the_same_again(rogue: Rogue) -> None:
    rogue.ids(0)
    rogue.ids(0)


def out_of_order(rogue: Rogue) -> None:
    rogue.seq += 1
    rogue.ids(0)


def a_report_too_soon(rogue: Rogue) -> None:
    rogue.frame(Kind.REPORT, Report(0, 0, 0.0, 0.0))


def bits_at_the_end(rogue: Rogue) -> None:
    batch = IdBatch(np.zeros(3, np.int32), np.zeros(3, bool), (2, 1))
    ids, flags = pack(batch, vocabulary=VOCABULARY)
    data = bytes(ids.data)[:-1] + b"\1"
    rogue.frame(
        Kind.IDS,
        Ids(0, "train", (2, 1)),
        tensors.encode([Part("ids", "U8", ids.shape, data), flags]),
    )


FAULTS: dict[Callable[[Rogue], None], tuple[str, str]] = {
    out_of_range: ("another vocabulary", "WireError"),
    floats: ("ids", "ids.dtypes"),
    hidden_states: ("may not send weights", "SessionError"),
    too_large: ("larger than the round's batches", "SessionError"),
    too_many: ("were asked for", "SessionError"),
    the_same_again: ("comes again", "SessionError"),
    out_of_order: ("runs ahead of", "SessionError"),
    a_report_too_soon: ("report once, and after enough", "SessionError"),
    bits_at_the_end: ("beyond its last token", "WireError"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_generator_that_breaks_a_rule_is_cut_off_and_the_others_go_on(
    hall: Hall, fault: Callable[[Rogue], None]
) -> None:
    sentence, rule = FAULTS[fault]
    learner = Digester()
    engine = hall.discriminator(learner, wanted=terms(steps=20, least=3))
    rogue, said = Rogue(hall), []

    def misbehave() -> None:
        rogue.begin()
        with suppress(PeerError, ChannelError):  # cut off while it spoke
            fault(rogue)
        said.append(rogue.told())

    thread = threading.Thread(target=misbehave)
    thread.start()
    hall.generate("ana", "en", Numbers(1))
    hall.generate("bo", "sw", Numbers(2))
    progress = engine.round()
    thread.join(10)
    hall.join()
    assert hall.failures == {}
    assert progress.step == 20
    assert hall.reports.keys() == {"ana", "bo"}
    left = [event for event in hall.events if isinstance(event, Left) and event.party == "mallory"]
    assert len(left) == 1
    assert sentence in left[0].why
    denied = [
        record
        for _, record in read_records(hall.folder / "hub" / "audit-mallory")
        if isinstance(record, Denied)
    ]
    assert [(record.direction, record.rule) for record in denied] == [("in", rule)]
    # Nobody else's log knows of it.
    for party in ("ana", "bo"):
        folder = hall.folder / "hub" / f"audit-{party}"
        assert not any(isinstance(record, Denied) for _, record in read_records(folder))


def test_a_language_that_is_anothers_is_refused_by_name(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(least=1, gather_s=0.5))
    hall.generate("ana", "en", Numbers(1))
    hall.generate("bo", "en", Numbers(2))
    engine.round()
    hall.join()
    (failed,) = hall.failures
    holder = ({"ana", "bo"} - {failed}).pop()
    assert f"language en is {holder}'s in this run" in str(hall.failures[failed])


def test_another_vocabulary_is_refused_at_both_ends(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(least=1, gather_s=0.5))
    hall.generate("ana", "en", Numbers(1))
    other = Numbers(2)
    hall.generate("bo", "sw", other, digest="b" * 64)  # finds out by itself
    rogue = Rogue(hall, digest="c" * 64)  # pretends to
    sentences: list[str] = []

    def speak() -> None:
        rogue.channel.receive(timeout_s=5)
        rogue.frame(Kind.ENLIST, Enlist("xx", rogue.digest, 1_000, 0, 0))
        sentences.append(rogue.told())

    thread = threading.Thread(target=speak)
    thread.start()
    engine.round()
    thread.join(10)
    hall.join()
    assert other.made == []
    assert "trains on vocabulary aaaaaaaaaaaaaaaa" in str(hall.failures["bo"])
    assert "vocabulary cccccccccccccccc" in sentences[0]


def test_a_quota_is_the_policys_and_ends_the_stream_that_reached_it(hall: Hall) -> None:
    policy = load(POLICIES / "discriminator.toml")
    tight = msgspec.structs.replace(
        policy,
        rules=tuple(
            msgspec.structs.replace(rule, max_run_bytes=1_200) if rule.id == "ids" else rule
            for rule in policy.rules
        ),
    )
    arrive = hall.connect
    name = PartyName(federation="example.org", party="ana", role=Role.GENERATOR)
    hall.generate("ana", "en", Numbers(1), channel=arrive("ana"))
    arrival = hall.queue.get()
    folder = hall.folder / "hub" / "audit-ana"

    def open_gate(offer: Round, session: object) -> Gate:
        return Gate.open(
            tight,
            log=hall.log(folder, HUB),
            session=session,  # type: ignore[arg-type]
            me=HUB,
            peer=name,
            binding="e" * 64,
            offer=offer,
            software="splitlearn test",
        )

    hall.queue.put(replace(arrival, open_gate=open_gate))
    hall.generate("bo", "sw", Numbers(2))
    progress = hall.discriminator(Digester(), wanted=terms(steps=20, least=2)).round()
    assert progress.step == 20
    denied = [r for _, r in read_records(folder) if isinstance(r, Denied)]
    assert [record.rule for record in denied] == ["ids.max_run_bytes"]
    assert progress.members["bo"].batches > progress.members["ana"].batches


def test_a_generator_that_leaves_without_receipts_costs_the_round_nothing(hall: Hall) -> None:
    engine = hall.discriminator(Digester(), wanted=terms(steps=4, held_out=1, least=1, buffer=1))
    rogue, kinds = Rogue(hall), []

    def late() -> None:
        rogue.begin()
        for index in range(4):
            rogue.ids(index)
        while True:
            frame = rogue.channel.receive(timeout_s=5)
            kinds.append(frame.kind)
            if isinstance(frame.meta, Ask) and frame.meta.evaluate:
                batch = IdBatch(np.zeros(3, np.int32), np.zeros(3, bool), (3,))
                payload = tensors.encode(pack(batch, vocabulary=VOCABULARY))
                rogue.frame(Kind.IDS, Ids(0, "evaluate", (3,)), payload)
            if frame.kind is Kind.ENOUGH:
                rogue.frame(Kind.REPORT, Report(4, 24, 1.0, 1.0))
                rogue.channel.close(reason="it has seen enough")
                return

    thread = threading.Thread(target=late)
    thread.start()
    assert engine.round().step == 4
    thread.join(10)
    assert kinds[-1] is Kind.ENOUGH


def test_an_empty_word_is_no_batch() -> None:
    with pytest.raises(SplitLearnError):
        frames.encode(Kind.IDS, seq=1, meta=Ids(0, "train", ()))
    assert frames.decode(frames.encode(Kind.ENOUGH, seq=1, meta=Empty())).kind is Kind.ENOUGH
