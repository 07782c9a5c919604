"""One hop between its two ends: memory channel, real gates, sessions and logs."""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.audit import reconcile
from splitlearn.audit.findings import Exit
from splitlearn.channel import Channel, Released
from splitlearn.codecs import build
from splitlearn.engine.compute.bridge import BridgeEnd, terms_of
from splitlearn.engine.conversation.lanes import BridgeLost, Lanes
from splitlearn.errors import ChannelError, PeerError, RefusedError, SessionError, WireError
from splitlearn.identity import PartyName
from splitlearn.roles import Kind, Role
from splitlearn.session import Side
from splitlearn.split.cut import Cut
from splitlearn.wire import frames
from splitlearn.wire.messages import Hops, Neighbour, Offer, StepTensor
from tests.chains import chain_run
from tests.neighbours import Doors, Street
from tests.rig import TRUSTED, Party
from tests.tiny import tiny_model

Change = Callable[[Released], Released]


def offers() -> tuple[Offer, Offer]:
    """To the two parties of a chain, with a bridge in common."""
    run = chain_run(tiny_model("bert", layers=4), cut=Cut(1, 3), starts=(2,), total=4, direct=True)
    bridge = secrets.token_hex(16)
    made = []
    for hop in run.hops:
        hops = hop.offer.detail.hops
        assert hops is not None
        named = [n and msgspec.structs.replace(n, bridge=bridge) for n in (hops.before, hops.after)]
        detail = msgspec.structs.replace(hop.offer.detail, hops=Hops(*named))
        made.append(msgspec.structs.replace(hop.offer, detail=detail))
    return made[0], made[1]


@dataclass
class Forging:
    """A channel whose owner's frames are changed on their way out, as a party that lies would write them."""

    inner: Channel
    change: Change

    def send(self, released: Released, *, deadline_s: float) -> None:
        self.inner.send(self.change(released), deadline_s=deadline_s)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def rewritten(kind: Kind, **fields: object) -> Change:
    """Other metadata in frames of a kind."""

    def change(released: Released) -> Released:
        if released.kind is not kind:
            return released
        frame = frames.decode(released.raw)
        meta = msgspec.structs.replace(frame.meta, **fields)
        raw = frames.encode(kind, seq=frame.seq, meta=meta, payload=bytes(frame.payload))
        return Released(kind=kind, seq=frame.seq, raw=raw)

    return change


class Two:
    """Both ends. `change`: what the one before lies."""

    def __init__(
        self,
        folder: Path,
        *,
        change: Change = lambda released: released,
        policy: str = "compute-direct.toml",
    ) -> None:
        def around(name: str, channel: Channel) -> Channel:
            return Forging(channel, change) if name == "host0" else channel  # type: ignore[return-value]

        street = Street(around=around)
        self.parties = [
            Party(
                folder / name,
                me=PartyName(federation="fed.example", party=name, role=Role.COMPUTE),
                peer=TRUSTED,
                policy="compute.toml",
            )
            for name in ("host0", "host1")
        ]
        self.doors = [Doors(street, party, policy_file=policy) for party in self.parties]
        self.offers = offers()
        self.ends = [
            BridgeEnd(
                offer,
                side=side,
                neighbours=doors,
                lanes=Lanes(),
                deadline_s=5.0,
                overlap=False,
                sent=Counter(),
                received=Counter(),
            )
            for offer, side, doors in zip(
                self.offers, (Side.BEFORE, Side.AFTER), self.doors, strict=True
            )
        ]

    def open(self, *steps: int) -> list[BaseException | None]:
        """Open both and answer the first settlement; what went wrong at each end."""
        found: list[BaseException | None] = [None, None]

        def work(number: int) -> None:
            end = self.ends[number]
            try:
                end.open(steps[number] if steps else 0, wanted=lambda: None)
                if number:
                    end.answer(end.talk.hear(Kind.SETTLE))
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                found[number] = error
                end.end(error, blamed=True)

        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return found

    def send(self, rows: int = 8, **fields: object) -> None:
        """An activation of the first step from the end before."""
        place = StepTensor(0, 0, 1, "train", 5, True, (5, 3), 0)
        meta = msgspec.structs.replace(place, **fields)
        self.ends[0].talk.say_soon(
            Kind.ACTIVATION, meta, lambda: torch.randn(rows, 32), codec=build("identity")
        )

    def close(self) -> None:
        for doors in self.doors:
            doors.close()
        for party in self.parties:
            party.log.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Two]]:
    made: list[Two] = []

    def two(**how: object) -> Two:
        made.append(Two(tmp_path, **how))  # type: ignore[arg-type]
        return made[-1]

    yield two
    for each in made:
        each.close()


def test_both_ends_have_the_same_terms_from_their_own_offers() -> None:
    before, after = offers()
    terms = terms_of(before, side=Side.BEFORE)
    assert terms == terms_of(after, side=Side.AFTER)
    assert (terms.layer, terms.mode, terms.purpose) == (2, "full", "train")
    assert terms.job == before.job


def test_codecs_of_a_hop_are_those_between_its_ends() -> None:
    before, _ = offers()
    codecs = msgspec.structs.replace(before.codecs, output="int8", gradient="fp16")
    terms = terms_of(msgspec.structs.replace(before, codecs=codecs), side=Side.BEFORE)
    assert (terms.activation, terms.input_gradient) == ("int8", "fp16")


def test_a_hop_is_opened_used_and_closed_and_its_two_logs_agree(
    make: Callable[..., Two], tmp_path: Path
) -> None:
    two = make()
    assert two.open(3, 3) == [None, None]
    before, after = two.ends
    assert before.session.next_step == after.session.next_step == 3
    two.send(step=3)
    frame = after.talk.hear(Kind.ACTIVATION)
    assert not after.answer(frame)
    rows = after.talk.tensor(frame, codec=build("identity"), rows=8, width=32)
    after.talk.say_soon(
        Kind.INPUT_GRADIENT,
        msgspec.structs.replace(frame.meta, lengths=()),
        lambda: rows,
        codec=build("identity"),
    )
    before.talk.hear(Kind.INPUT_GRADIENT)
    closing = threading.Thread(target=before.finish)
    closing.start()
    while not after.closed:
        assert after.answer(after.talk.hear(Kind.SETTLE, Kind.FINISH))
    closing.join(20)
    assert before.closed
    for end in two.ends:
        end.end(None, blamed=False)
    two.close()
    found = reconcile(tmp_path / "host0/audit-host1", tmp_path / "host1/audit-host0")
    assert found.exit is Exit.CLEAN, found.differences
    assert found.matched == 14
    assert found.here.countersigned
    assert found.there.countersigned


def test_ends_at_different_steps_do_not_begin(make: Callable[..., Two]) -> None:
    error, other = make().open(2, 0)
    assert isinstance(error, SessionError)
    assert "host1 stands at step 0, where the trusted party had us go on from 2" in str(error)
    assert isinstance(other, BridgeLost)
    assert "one of us was told another step" in str(other)  # it is told in full


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"conversation": "d" * 32}, "another conversation than the trusted party offered us"),
        ({"job": "9" * 64, "activation": "int8"}, "another job, activation than"),
        ({"salt": "9" * 64}, "another salt"),
        ({"mode": "features"}, "another mode"),
    ],
)
def test_another_hop_than_the_offered_one_is_refused(
    make: Callable[..., Two], fields: dict[str, object], says: str
) -> None:
    lost, error = make(change=rewritten(Kind.BRIDGE, **fields)).open()
    assert isinstance(error, SessionError)
    assert says in str(error)
    assert isinstance(lost, BridgeLost)


def test_a_neighbour_that_names_another_step_is_refused(make: Callable[..., Two]) -> None:
    _, error = make(change=rewritten(Kind.RESUME, step=7)).open()
    assert isinstance(error, SessionError)
    assert "resume names step 7" in str(error)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"step": 1},
            "activation of train step 1 while the view of the party after is open, step 0",
        ),
        ({"micro_batch": 1, "micro_batches": 2}, "expected number 0"),
        ({"phase": "generate"}, "on a hop of a run to train"),
        ({"lengths": (5, 4)}, None),
        ({"lengths": (6, 3)}, "padded to 5"),
    ],
)
def test_a_neighbour_that_lies_about_step_or_shape_is_refused(
    make: Callable[..., Two], fields: dict[str, object], says: str | None
) -> None:
    two = make(change=rewritten(Kind.ACTIVATION, **fields))
    assert two.open() == [None, None]
    two.send()
    after = two.ends[1]
    with pytest.raises(PeerError) as caught:
        take_in(after)
    if says is None:
        assert isinstance(caught.value, WireError)
    else:
        assert says in str(caught.value)
    for end, error in zip(two.ends, (None, caught.value), strict=True):
        end.end(error, blamed=True)


def take_in(end: BridgeEnd) -> None:
    frame = end.talk.hear(Kind.ACTIVATION)
    assert isinstance(frame.meta, StepTensor)
    end.talk.tensor(frame, codec=build("identity"), rows=sum(frame.meta.lengths), width=32)


def test_a_policy_without_a_rule_for_neighbours_lets_nothing_pass(
    make: Callable[..., Two],
) -> None:
    error, _ = make(policy="compute.toml").open()
    assert isinstance(error, RefusedError)
    assert "no rule that lets bridge to a compute party pass" in str(error)


def test_a_neighbour_that_is_not_there_is_named_at_the_deadline(tmp_path: Path) -> None:
    class Nowhere:
        def find(self, neighbour: Neighbour, *, timeout_s: float) -> Channel:
            del timeout_s
            raise ChannelError(f"{neighbour.party} does not answer")

        def open_gate(self, *_: object, **__: object) -> object:
            raise AssertionError("no door without a neighbour")

    asked: list[int] = []
    end = BridgeEnd(
        offers()[0],
        side=Side.BEFORE,
        neighbours=Nowhere(),  # type: ignore[arg-type]
        lanes=Lanes(),
        deadline_s=0.0,
        overlap=False,
        sent=Counter(),
        received=Counter(),
    )
    with pytest.raises(
        ChannelError, match="neighbour host1 could not be had within 0 s: host1 does"
    ):
        end.open(0, wanted=lambda: asked.append(1))
    assert asked
    end.end(None, blamed=False)


def test_a_run_that_has_gone_on_is_not_waited_for(make: Callable[..., Two]) -> None:
    class Gone(Exception):
        pass

    def wanted() -> None:
        raise Gone

    with pytest.raises(Gone):
        make().ends[0].open(0, wanted=wanted)


def test_settlements_are_led_by_the_end_before_when_they_are_due(make: Callable[..., Two]) -> None:
    two = make()
    assert two.open() == [None, None]
    before, after = two.ends
    said = before.talk.sent[Kind.SETTLE]
    before.settle_if_due()
    after.settle_if_due()
    assert before.talk.sent[Kind.SETTLE] == said
    before.session.unsettled = 200
    leading = threading.Thread(target=before.settle_if_due)
    leading.start()
    assert after.answer(after.talk.hear(Kind.SETTLE))
    leading.join(20)
    assert before.session.unsettled == 0
    for end in two.ends:
        end.end(None, blamed=False)
