"""Whose turn it is, and what becomes of a lost hop; whole runs stand in tests/exactness/test_direct.py."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from splitlearn.channel import PeerRestarted, Released, pair
from splitlearn.channel.memory import MemoryChannel
from splitlearn.engine.compute.bridge import BridgeEnd
from splitlearn.engine.compute.bridges import Bridges, bridging
from splitlearn.engine.conversation.lanes import BridgeLost, Lane, Lanes
from splitlearn.engine.conversation.talk import Talk
from splitlearn.errors import ChannelError, IdentityError, PeerError, SessionError, SplitLearnError
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.wire import frames
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Detail, Empty, Finish, Meta, Step, StepTensor
from tests.chains import Host, chain_engine, chain_run, names
from tests.engine.compute.test_bridge import offers
from tests.exactness.test_chain import stream
from tests.tiny import tiny_model

PLACE = StepTensor(3, 0, 2, "train", 5, True, (), 7)


def frame(kind: Kind, meta: Meta) -> Frame:
    return frames.decode(frames.encode(kind, seq=1, meta=meta))


@dataclass
class Said:
    """A conversation whose next frame is `came`; it says what was heard of it."""

    name: str
    came: Frame | None = None
    heard: list[Kind] = field(default_factory=list)
    closed: bool = False
    settled: int = 0

    @property
    def talk(self) -> "Said":
        return self

    @property
    def lane(self) -> "Said":
        return self

    @property
    def peer(self) -> str:
        return self.name

    def next(self) -> Frame | None:
        return self.came

    def hear(self, *_: Kind) -> Frame:
        assert self.came is not None
        came, self.came = self.came, None
        self.heard.append(came.kind)
        return came

    def answer(self, came: Frame) -> bool:
        return came.kind in {Kind.SETTLE, Kind.FINISH}

    def settle_if_due(self) -> None:
        self.settled += 1


def among(
    *, before: Said | None = None, after: Said | None = None, done: int = 3
) -> tuple[Bridges, Said]:
    trusted = Said("clinic")
    made: Any = Bridges(
        trusted=cast(Talk, trusted),
        lanes=Lanes(),
        before=cast("BridgeEnd | None", before),
        after=cast("BridgeEnd | None", after),
        deadline_s=0.05,
        done=done,
        _lane=cast(Lane, trusted),
    )
    return made, trusted


def test_an_output_goes_to_whoever_comes_after_and_says_its_lengths() -> None:
    before, after = Said("a"), Said("c")
    bridges, trusted = among(before=before, after=after)
    to, kind, meta = bridges.route(Kind.OUTPUT, PLACE, lengths=(5, 3))
    assert (to, kind) == (after, Kind.ACTIVATION)
    assert (meta.lengths, meta.reply_to, meta.step) == ((5, 3), 0, 3)
    to, kind, meta = bridges.route(Kind.INPUT_GRADIENT, PLACE, lengths=(5, 3))
    assert (to, kind) == (before, Kind.INPUT_GRADIENT)
    assert (meta.lengths, meta.reply_to) == ((), 0)
    for kind in (Kind.OUTPUT, Kind.INPUT_GRADIENT):
        alone, trusted = among()
        assert alone.route(kind, PLACE, lengths=(5, 3))[:2] == (trusted, kind)


@pytest.mark.parametrize(
    ("kind", "meta", "busy", "due"),
    [
        (Kind.ACTIVATION, StepTensor(3, 0, 1, "train", 5, True, (5,), 0), True, True),
        (Kind.ACTIVATION, StepTensor(4, 0, 1, "train", 5, True, (5,), 0), True, False),
        (Kind.ACTIVATION, StepTensor(4, 0, 1, "evaluate", 5, True, (5,), 0), True, False),
        # What no honest party says is not waited for: the session refuses it.
        (Kind.ACTIVATION, StepTensor(9, 0, 1, "train", 5, True, (5,), 0), True, True),
        (Kind.CHECKPOINT, Step(4), True, False),
        (Kind.CHECKPOINT, Step(3), False, True),
        (Kind.FINISH, Finish(False), True, False),
        (Kind.FINISH, Finish(False), False, True),
    ],
)
def test_what_the_trusted_party_says_has_its_turn_when_the_step_before_is_over(
    kind: Kind, meta: Meta, busy: bool, due: bool
) -> None:
    bridges, trusted = among(before=Said("a"))
    trusted.came = frame(kind, meta)
    if due:
        assert bridges.hear(busy=busy)[0] is trusted
        return
    with pytest.raises(ChannelError, match="neither clinic nor a; 3 steps are done"):
        bridges.hear(busy=busy)
    assert trusted.heard == []
    if kind is Kind.CHECKPOINT:
        bridges.stepped(3)
        assert bridges.hear(busy=False)[1].kind is kind


def test_gradients_come_before_what_lies_in_front_of_them() -> None:
    before, after = Said("a"), Said("c")
    bridges, trusted = among(before=before, after=after)
    before.came = frame(Kind.ACTIVATION, StepTensor(3, 0, 1, "train", 5, True, (5,), 0))
    after.came = frame(Kind.INPUT_GRADIENT, PLACE)
    trusted.came = frame(Kind.CHECKPOINT, Step(3))
    heard = [bridges.hear(busy=True)[0] for _ in range(3)]
    assert heard == [after, trusted, before]
    assert after.settled == 1  # before the first activation of a step went on to it


def test_words_between_neighbours_are_answered_here_and_not_by_the_engine() -> None:
    before = Said("a")
    bridges, trusted = among(before=before)
    before.came = frame(Kind.FINISH, Finish(False))
    trusted.came = frame(Kind.CHECKPOINT, Step(3))
    assert bridges.hear(busy=False)[0] is trusted
    with pytest.raises(ChannelError):
        bridges.hear(busy=False)
    assert before.heard == [Kind.FINISH]


def test_a_checkpoint_names_the_steps_that_are_done_here() -> None:
    bridges, _ = among()
    bridges.check_done(frame(Kind.CHECKPOINT, Step(3)))
    with pytest.raises(SessionError, match="checkpoint names step 2; 3 steps are done here"):
        bridges.check_done(frame(Kind.CHECKPOINT, Step(2)))


def test_a_goodbye_after_the_goodbye_is_the_only_thing_heard_of_a_neighbour() -> None:
    before = Said("a")
    bridges, _ = among(before=before)
    before.came = frame(Kind.READY, Empty())
    with pytest.raises(SessionError, match="ready after the trusted party said finish"):
        bridges.finish()


def test_a_party_without_neighbours_in_its_settings_refuses_the_offer(tmp_path: Path) -> None:
    model = tiny_model("bert", layers=4)
    run = chain_run(model, cut=Cut(1, 3), starts=(2,), total=4, deadline_s=0.5, direct=True)
    parties = [Host.start(tmp_path, name, policy="demo.toml") for name in names(run)]
    with pytest.raises(SplitLearnError):
        chain_engine(tmp_path, run, parties).train(stream(model))
    for party in parties:
        party.thread.join(20)
        assert isinstance(party.thread.error, IdentityError)
        assert "as our neighbour, and our settings have no [[neighbour]]" in str(party.thread.error)


class Nobody:
    """Neighbours that are never asked for."""

    def find(self, *_: object, **__: object) -> Any:
        raise AssertionError("nobody is looked for")

    open_gate = find


@pytest.fixture
def ends() -> tuple[MemoryChannel, MemoryChannel]:
    return pair(names=("clinic", "host"))


@contextmanager
def losing(channel: MemoryChannel) -> Iterator[SimpleNamespace]:
    """A conversation with the trusted party in which a neighbour is lost."""
    talk = SimpleNamespace(channel=channel, deadline_s=0.1, overlap=False)
    counts: Any = {"sent": Counter(), "received": Counter()}
    with bridging(cast(Talk, talk), offers()[0], cast(Any, Nobody()), **counts) as bridges:
        assert bridges is not None
        assert talk.channel is channel  # until the weights are there
        bridges.listen()
        assert talk.channel is bridges.lane
        yield talk
        raise BridgeLost("the hop to farm is lost: it said no more")


def test_a_lost_neighbour_without_a_new_beginning_ends_the_run_with_both_reasons(
    ends: tuple[MemoryChannel, MemoryChannel],
) -> None:
    both = "the hop to farm is lost: it said no more; and clinic did not begin anew"
    with pytest.raises(ChannelError, match=both) as caught, losing(ends[1]) as talk:
        pass
    assert not isinstance(caught.value, BridgeLost)
    assert talk.channel is ends[1]  # it is heard by nobody else any more


def test_after_a_lost_neighbour_what_the_trusted_party_does_decides(
    ends: tuple[MemoryChannel, MemoryChannel],
) -> None:
    ours, theirs = ends
    # What it had said before is of no use to anybody.
    raw = frames.encode(Kind.CHECKPOINT, seq=1, meta=Step(3))
    ours.send(Released(kind=Kind.CHECKPOINT, seq=1, raw=raw), deadline_s=1)
    with pytest.raises(PeerRestarted), losing(theirs):
        again = ours.restart()
    theirs.renew()
    with pytest.raises(PeerError, match="that was all"), losing(theirs):
        again.close(reason="that was all")


def test_any_other_run_has_no_bridges(ends: tuple[MemoryChannel, MemoryChannel]) -> None:
    talk = SimpleNamespace(channel=ends[1], deadline_s=0.1, overlap=False)
    offer = msgspec.structs.replace(offers()[0], detail=Detail())
    with bridging(cast(Talk, talk), offer, None, sent=Counter(), received=Counter()) as bridges:
        assert bridges is None
        assert talk.channel is ends[1]
