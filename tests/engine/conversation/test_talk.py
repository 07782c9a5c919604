"""One party's mouth and ears over a memory channel, through real gates, sessions and logs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import RunClose, decode
from splitlearn.channel import Channel, PeerRestarted, pair
from splitlearn.channel.memory import MemoryChannel
from splitlearn.codecs import build
from splitlearn.codecs.base import to_part
from splitlearn.engine.conversation.talk import Talk
from splitlearn.errors import ChannelError, PeerError, RefusedError, SessionError, WireError
from splitlearn.gate import Private
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.split.cut import Cut
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Accept, Empty, Offer, Resume, Shard, StepTensor
from tests.rig import Party, compute_party, trusted_party, trusted_run
from tests.tiny import tiny_model


@dataclass
class Two:
    """A trusted party's talk and a compute party's, over one memory channel."""

    clinic: Talk
    gpuhost: Talk
    parties: tuple[Party, Party]
    offer: Offer

    def agree(self, *, needs: tuple[str, ...] = ()) -> None:
        self.clinic.say(Kind.OFFER, self.offer)
        self.gpuhost.hear(Kind.OFFER)
        self.gpuhost.say(Kind.ACCEPT, Accept((), needs, 0))  # type: ignore[arg-type]
        self.clinic.hear(Kind.ACCEPT)


def talk(party: Party, channel: Channel, offer: Offer, *, me: Role, peer: Role) -> Talk:
    session = Session(me=me, peer=peer)
    gate = party.gate(offer, session)
    return Talk(channel=channel, session=session, gate=gate, deadline_s=0.05)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Two]:
    def made(*, window: int = 8) -> Two:
        offer = trusted_run(tiny_model("bert", layers=3), cut=Cut(1, 2), total=2).offer
        parties = trusted_party(tmp_path), compute_party(tmp_path)
        ours, theirs = pair(window=window)
        return Two(
            talk(parties[0], ours, offer, me=Role.TRUSTED, peer=Role.COMPUTE),
            talk(parties[1], theirs, offer, me=Role.COMPUTE, peer=Role.TRUSTED),
            parties,
            offer,
        )

    return made


def outcomes(party: Party) -> list[str]:
    records = (decode(line) for line, _ in read_lines(party.folder / "audit"))
    return [record.outcome for record in records if isinstance(record, RunClose)]


def test_what_one_says_the_other_hears_and_both_count_the_same_bytes(
    make: Callable[..., Two],
) -> None:
    two = make()
    two.agree(needs=("layers",))
    weights = (to_part("layers.1.x", torch.ones(5)),)
    assert two.clinic.say(Kind.WEIGHTS, Shard(0, 1), parts=weights) == 2
    frame = two.gpuhost.hear(Kind.WEIGHTS)
    (part,) = two.gpuhost.parts(frame)
    assert (part.name, part.shape) == ("layers.1.x", (5,))
    assert two.clinic.sent == two.gpuhost.received
    assert two.gpuhost.sent == two.clinic.received
    assert two.clinic.sent.keys() == {Kind.OFFER, Kind.WEIGHTS}
    assert two.clinic.sent[Kind.WEIGHTS] == len(frame.raw)


def test_silence_names_the_peer_the_step_and_what_was_awaited(make: Callable[..., Two]) -> None:
    two = make()
    with pytest.raises(ChannelError, match="awaited accept of step 0 from compute"):
        two.clinic.hear(Kind.ACCEPT)
    with pytest.raises(ChannelError, match="awaited weights or resume of step 0 from trusted"):
        two.gpuhost.hear(Kind.WEIGHTS, Kind.RESUME)


def test_a_peer_that_takes_nothing_is_named_with_the_message(make: Callable[..., Two]) -> None:
    two = make(window=1)
    two.agree(needs=("layers",))
    two.clinic.say(Kind.WEIGHTS, Shard(0, 2), parts=())
    with pytest.raises(ChannelError, match="while sending weights of step 0 from compute"):
        two.clinic.say(Kind.WEIGHTS, Shard(1, 2), parts=())
    arrived = two.gpuhost.hear(Kind.WEIGHTS)
    assert two.clinic.sent[Kind.WEIGHTS] == len(arrived.raw)


def test_a_peer_that_restarted_is_not_taken_for_a_silent_one(make: Callable[..., Two]) -> None:
    two = make()
    two.agree()
    two.gpuhost.channel.restart()  # type: ignore[attr-defined]
    with pytest.raises(PeerRestarted, match="compute") as hearing:
        two.clinic.hear(Kind.READY)
    assert "awaited" not in str(hearing.value)
    two.clinic.channel.restart()  # type: ignore[attr-defined]


def test_saying_something_to_a_restarted_peer_says_so_too(make: Callable[..., Two]) -> None:
    two = make()
    two.agree()
    two.gpuhost.channel.restart()  # type: ignore[attr-defined]
    with pytest.raises(PeerRestarted):
        two.clinic.say(Kind.RESUME, Resume(0, 0))
    assert Kind.RESUME not in two.clinic.sent


def test_what_is_not_legal_now_is_not_said(make: Callable[..., Two]) -> None:
    two = make()
    with pytest.raises(SessionError, match="expected offer"):
        two.clinic.say(Kind.RESUME, Resume(0, 0))
    assert two.clinic.sent.total() == 0


def test_what_is_not_legal_now_is_not_heard(make: Callable[..., Two]) -> None:
    two = make()
    two.clinic.say(Kind.OFFER, two.offer)
    frame = two.gpuhost.hear(Kind.OFFER)
    with pytest.raises(SessionError, match="repeats"):
        two.gpuhost.admit(frame)
    assert two.gpuhost.received[Kind.OFFER] == len(frame.raw)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (RefusedError("no", rule="r"), "refused"),
        (ChannelError("gone"), "interrupted"),
        (PeerRestarted("back"), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(130), "interrupted"),
        (SessionError("out of turn"), "failed"),
        (ValueError("ours"), "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_the_log_says_once_how_a_conversation_ended(
    make: Callable[..., Two], error: BaseException | None, outcome: str
) -> None:
    two = make()
    two.agree()
    two.clinic.end(error)
    two.clinic.end(None)
    assert outcomes(two.parties[0]) == [outcome]
    with pytest.raises(RefusedError, match="closed"):
        two.clinic.say(Kind.RESUME, Resume(0, 0))


def test_a_dead_log_does_not_hide_the_error_that_ended_the_conversation(
    make: Callable[..., Two],
) -> None:
    two = make()
    two.agree()
    two.parties[0].log.close()
    two.clinic.end(ChannelError("gone"))
    assert outcomes(two.parties[0]) == []


def test_a_kind_without_a_payload_needs_none(make: Callable[..., Two]) -> None:
    two = make()
    two.agree()
    two.clinic.say(Kind.RESUME, Resume(0, 0))
    two.gpuhost.hear(Kind.RESUME)
    two.gpuhost.say(Kind.READY, Empty())
    assert two.clinic.hear(Kind.READY).meta == Empty()


def opened(make: Callable[..., Two]) -> Two:
    """A conversation in which activations may be said."""
    two = make()
    two.agree()
    two.clinic.say(Kind.RESUME, Resume(0, 0))
    two.gpuhost.hear(Kind.RESUME)
    two.gpuhost.say(Kind.READY, Empty())
    two.clinic.hear(Kind.READY)
    return two


def soon(two: Two, x_ND: torch.Tensor, *, i: int = 0) -> None:
    meta = StepTensor(0, i, 2, "train", x_ND.shape[0], True, (x_ND.shape[0],), 0)
    ids = torch.arange(x_ND.shape[0]).view(1, -1).numpy()
    private = Private(ids=ids, labels=(), lengths=(x_ND.shape[0],))
    two.clinic.say_soon(
        Kind.ACTIVATION, meta, lambda: x_ND, codec=build("identity"), private=private
    )


def test_what_is_said_soon_comes_in_order_before_what_is_said(make: Callable[..., Two]) -> None:
    two = opened(make)
    rows = [torch.full((3, 32), float(i)).add_(torch.rand(3, 32)) for i in (0, 1)]
    for i in (0, 1):
        soon(two, rows[i], i=i)
    two.clinic.flush()
    for i in (0, 1):
        frame = two.gpuhost.hear(Kind.ACTIVATION)
        heard = two.gpuhost.tensor(frame, codec=build("identity"), rows=3, width=32)
        assert torch.equal(heard, rows[i])
    assert two.clinic.sent[Kind.ACTIVATION] == two.gpuhost.received[Kind.ACTIVATION]


def test_what_is_refused_in_the_other_thread_is_raised_at_the_next_word(
    make: Callable[..., Two],
) -> None:
    two = opened(make)
    soon(two, torch.full((3, 32), float("nan")))
    with pytest.raises(RefusedError, match="NaN"):
        two.clinic.hear(Kind.OUTPUT)
    assert Kind.ACTIVATION not in two.clinic.sent
    with pytest.raises(ChannelError):
        two.gpuhost.hear(Kind.ACTIVATION)


def test_without_overlap_it_is_raised_at_once(make: Callable[..., Two]) -> None:
    two = opened(make)
    two.clinic.overlap = False
    with pytest.raises(RefusedError, match="NaN"):
        soon(two, torch.full((3, 32), float("nan")))


def test_nothing_of_an_ended_conversation_is_sent(make: Callable[..., Two]) -> None:
    """Neither what was asked for before the end nor, gate shut, after it."""
    two = opened(make)
    two.gpuhost.channel.restart()  # type: ignore[attr-defined]
    soon(two, torch.rand(3, 32))
    with pytest.raises(PeerRestarted):
        two.clinic.flush()
    two.clinic.end(PeerRestarted("back"))
    assert Kind.ACTIVATION not in two.clinic.sent
    with pytest.raises(PeerRestarted):
        soon(two, torch.rand(3, 32))


def place_of(frame: Frame) -> int:
    assert isinstance(frame.meta, StepTensor)
    return frame.meta.micro_batch


def test_what_is_taken_in_is_admitted_at_once_heard_in_order_and_opened_elsewhere(
    make: Callable[..., Two], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = opened(make)
    two.gpuhost.overlap = True  # also on one core
    rows = [torch.rand(3, 32) for _ in range(2)]
    for i in (0, 1):
        soon(two, rows[i], i=i)
    two.clinic.flush()
    threads: list[str] = []
    open_tensor = two.gpuhost.gate.open_tensor

    def noting(*given: Any, **named: Any) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        return open_tensor(*given, **named)

    monkeypatch.setattr(two.gpuhost.gate, "open_tensor", noting)
    assert list(two.gpuhost.take_in(lambda _: False)) == []
    assert Kind.ACTIVATION not in two.gpuhost.received
    for frame in two.gpuhost.take_in(lambda frame: place_of(frame) == 0):
        two.gpuhost.open_soon(frame, codec=build("identity"), rows=3, width=32)
    assert two.gpuhost.received[Kind.ACTIVATION] == len(frame.raw)
    for i in (0, 1):
        frame = two.gpuhost.hear(Kind.ACTIVATION)
        assert place_of(frame) == i
        heard = two.gpuhost.tensor(frame, codec=build("identity"), rows=3, width=32)
        assert torch.equal(heard, rows[i])
    assert two.gpuhost.hear_now() is None
    elsewhere, here = threads
    assert elsewhere.startswith("opener of")
    assert here == threading.current_thread().name


def test_what_cannot_be_opened_elsewhere_is_raised_where_it_is_owed_and_shuts_the_gate(
    make: Callable[..., Two],
) -> None:
    two = opened(make)
    two.gpuhost.overlap = True
    for i in (0, 1):
        soon(two, torch.rand(3, 32), i=i)
    two.clinic.flush()
    first, second = two.gpuhost.take_in(lambda _: True)
    two.gpuhost.open_soon(first, codec=build("identity"), rows=4, width=32)
    with pytest.raises(WireError, match="agreed codec"):
        two.gpuhost.tensor(first, codec=build("identity"), rows=4, width=32)
    with pytest.raises(RefusedError, match="shut"):
        two.gpuhost.tensor(second, codec=build("identity"), rows=3, width=32)


def test_an_end_waits_for_nothing_that_was_not_begun(make: Callable[..., Two]) -> None:
    before = set(threading.enumerate())
    two = opened(make)
    two.gpuhost.overlap = True
    soon(two, torch.rand(3, 32))
    two.clinic.flush()
    for frame in two.gpuhost.take_in(lambda _: True):
        two.gpuhost.open_soon(frame, codec=build("identity"), rows=3, width=32)
    two.gpuhost.end(ChannelError("gone"))
    assert outcomes(two.parties[1]) == ["interrupted"]
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("opener of")]


def test_what_was_looked_at_is_heard_later_and_in_its_order(make: Callable[..., Two]) -> None:
    two = make()
    two.clinic.say(Kind.OFFER, two.offer)
    two.gpuhost.look()
    assert two.gpuhost.received == {}  # not taken yet, so in no log
    two.gpuhost.look()
    assert two.gpuhost.hear(Kind.OFFER).kind is Kind.OFFER
    assert two.gpuhost.received[Kind.OFFER] > 0
    assert two.gpuhost.hear_now() is None


def test_whoever_waits_looks_elsewhere_meanwhile(make: Callable[..., Two]) -> None:
    two = make()
    looked: list[int] = []
    two.clinic.deadline_s = 0.3
    two.clinic.meanwhile = lambda: looked.append(1)
    two.clinic.say(Kind.OFFER, two.offer)
    with pytest.raises(
        ChannelError, match=r"compute sent nothing for 0\.3 s; the link is up; awaited"
    ):
        two.clinic.hear(Kind.ACCEPT)
    assert len(looked) > 2
    two.gpuhost.hear(Kind.OFFER)
    two.gpuhost.say(Kind.ACCEPT, Accept((), (), 0))
    assert two.clinic.hear(Kind.ACCEPT).kind is Kind.ACCEPT


def test_another_peers_restart_ends_a_wait_and_is_not_this_peers(make: Callable[..., Two]) -> None:
    two = make()

    def gone() -> None:
        raise PeerRestarted("another came back")

    two.clinic.meanwhile = gone
    two.clinic.say(Kind.OFFER, two.offer)
    with pytest.raises(PeerRestarted, match="another"):
        two.clinic.hear(Kind.ACCEPT)
    assert not two.clinic.restarted


def test_a_look_notices_a_restart_and_what_the_peer_says_we_did(make: Callable[..., Two]) -> None:
    two = make()
    ours, theirs = two.clinic.channel, two.gpuhost.channel
    assert isinstance(theirs, MemoryChannel)
    again = theirs.restart()
    with pytest.raises(PeerRestarted):
        two.clinic.look()
    assert two.clinic.restarted
    ours.renew()
    again.close(reason="you lied")
    with pytest.raises(PeerError, match="you lied"):
        two.clinic.look()
