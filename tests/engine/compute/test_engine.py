"""The compute party's answers: what it takes for weights, where it goes on from, what it refuses."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from splitlearn.channel import pair
from splitlearn.channel.base import Released
from splitlearn.channel.memory import MemoryChannel
from splitlearn.codecs.base import to_part
from splitlearn.engine.compute.arriving import RunPlace
from splitlearn.engine.compute.engine import ComputeEngine
from splitlearn.engine.payloads.weights import keep
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import (
    ChannelError,
    IdentityError,
    RefusedError,
    SessionError,
    SplitLearnError,
    WireError,
)
from splitlearn.roles import Kind
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.wire import frames
from splitlearn.wire.messages import (
    Accept,
    CutSpec,
    Finish,
    Meta,
    Offer,
    Resume,
    Shard,
    Step,
    StepTensor,
    TrunkModel,
)
from splitlearn.wire.tensors import encode
from tests.rig import (
    Around,
    ComputeThread,
    Party,
    batch_of,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
SFT = Cut(1, 3, upper=Bottleneck("sft", 4))


def made(*, cut: Cut = CUT, seed: int = 0, total: int = 2, run: str = "run") -> TrustedRun:
    return trusted_run(tiny_model("bert", seed=seed), cut=cut, total=total, run=run)


@dataclass
class Polite(Around):
    """Hands nothing on but activations before the engine has answered those: who pushes frames in at
    once did not wait for answers, as a peer does.
    """

    owed: int = 0
    held: frames.Frame | None = None

    def __post_init__(self) -> None:
        self.answered = threading.Semaphore(0)

    def send(self, released: Released, *, deadline_s: float) -> None:
        self.inner.send(released, deadline_s=deadline_s)
        if released.kind in {Kind.OUTPUT, Kind.INPUT_GRADIENT}:
            self.answered.release()

    def receive(self, *, timeout_s: float) -> frames.Frame:
        frame, self.held = self.held or self.inner.receive(timeout_s=timeout_s), None
        while frame.kind is not Kind.ACTIVATION and self.owed:
            if self.answered.acquire(timeout=1 if timeout_s else 0):
                self.owed -= 1
            elif timeout_s:
                self.owed = 0
            else:
                self.held = frame
                raise ChannelError("what has come waits for an answer")
        self.owed += frame.kind in {Kind.ACTIVATION, Kind.GRADIENT}
        return frame


@dataclass
class Desk:
    """A compute party's engine at one end of a channel, and a hand to push frames in at the other."""

    party: Party
    ours: MemoryChannel
    theirs: MemoryChannel
    engine: ComputeEngine
    place: RunPlace
    seq: int = 0

    def say(self, kind: Kind, meta: Meta, payload: bytes = b"") -> None:
        """What a trusted party without gate, session or manners sends."""
        self.seq += 1
        raw = frames.encode(kind, seq=self.seq, meta=meta, payload=payload)
        self.ours.send(Released(kind=kind, seq=self.seq, raw=raw), deadline_s=5)

    def agree(self, offer: Offer, *, resume: int = 0) -> None:
        self.say(Kind.OFFER, offer)
        self.say(Kind.RESUME, Resume(resume, 0))

    def heard(self) -> list[frames.Frame]:
        found = []
        try:
            while True:
                found.append(self.ours.receive(timeout_s=0))
        except SplitLearnError:
            return found

    def fails(self, error: type[Exception], sentence: str) -> list[Kind]:
        """The engine ends with that error; the kinds it had answered before."""
        with pytest.raises(error, match=sentence):
            self.engine.serve()
        return [frame.kind for frame in self.heard()]


def desk_at(folder: Path, *, models: tuple[Path, ...] = ()) -> Desk:
    party = compute_party(folder)
    ours, theirs = pair()
    place = RunPlace(party.folder / "checkpoints", party.folder / "received", models)
    engine = ComputeEngine(
        Polite(theirs),
        open_gate=party.gate,
        place_of=lambda _: place,
        deadline_s=0.2,
        observe=lambda _: None,
    )
    return Desk(party, ours, theirs, engine, place)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return desk_at(tmp_path)


@pytest.fixture
def ready(desk: Desk) -> tuple[Desk, TrustedRun]:
    """A desk that holds the weights of a run already, so that it goes from offer to steps at once."""
    run = made()
    keep(desk.place.received, run.groups["layers"], name=run.offer.layers)
    return desk, run


# Weights


@dataclass
class Trained:
    losses: list[float]
    weight_bytes: int


def train(folder: Path, run: TrustedRun, *, models: tuple[Path, ...] = ()) -> Trained:
    """A whole run between the two parties that live in `folder`."""
    trusted, compute = trusted_party(folder), compute_party(folder)
    batch = batch_of(tiny_batch(tiny_model("bert")))
    ours, theirs = pair()
    thread = ComputeThread(compute, theirs, models=models)
    engine = trusted_engine(run, trusted, ours)
    engine.train(lambda _: [batch])
    engine.finish()
    thread.join(20)
    assert thread.error is None
    for party in (trusted, compute):
        party.log.close()
    return Trained(engine.losses, engine.sent[Kind.WEIGHTS])


def test_weights_are_sent_once_and_kept_under_their_digest(tmp_path: Path) -> None:
    first = train(tmp_path, made(cut=SFT, run="one"))
    kept = {path.stem for path in (tmp_path / "gpuhost" / "received").iterdir()}
    run = made(cut=SFT)
    assert kept == {run.offer.layers, run.offer.bottlenecks}
    assert first.weight_bytes > sum(t.nbytes for g in run.groups.values() for t in g.values())
    for party in ("clinic", "gpuhost"):  # the next run begins at 0, with what was kept
        Checkpoints(tmp_path / party / "checkpoints").drop_after(-1)
    second = train(tmp_path, made(cut=SFT, run="two"))
    assert second.weight_bytes == 0
    assert second.losses == first.losses


def test_a_model_folder_with_the_same_digest_saves_sending(tmp_path: Path) -> None:
    tiny_model("bert", seed=3).save_pretrained(tmp_path / "other")
    tiny_model("bert", layers=2).save_pretrained(tmp_path / "shorter")
    tiny_model("bert").save_pretrained(tmp_path / "same")
    folders = tuple(tmp_path / name for name in ("none", "other", "shorter", "same"))
    result = train(tmp_path / "with", made(), models=folders)
    assert result.weight_bytes == 0
    assert not (tmp_path / "with" / "gpuhost" / "received").exists()
    sent = train(tmp_path / "without", made(), models=folders[:-1])
    assert sent.weight_bytes > 0
    assert result.losses == sent.losses


def test_kept_weights_that_were_damaged_are_asked_for_again(tmp_path: Path) -> None:
    run = made()
    received = tmp_path / "gpuhost" / "received"
    damaged = {name: tensor + 1 for name, tensor in run.groups["layers"].items()}
    keep(received, damaged, name=run.offer.layers)
    assert train(tmp_path, run).weight_bytes > 0


def weights(run: TrustedRun) -> bytes:
    return encode(tuple(to_part(n, t) for n, t in sorted(run.groups["layers"].items())))


def test_weights_of_another_digest_are_refused_and_not_kept(desk: Desk) -> None:
    run = made()
    desk.say(Kind.OFFER, msgspec.structs.replace(run.offer, layers="a" * 64))
    desk.say(Kind.WEIGHTS, Shard(0, 1), weights(run))
    desk.say(Kind.RESUME, Resume(0, 0))
    answered = desk.fails(IdentityError, "layers weights that trusted sent have another digest")
    assert answered == [Kind.ACCEPT]
    assert not desk.place.received.exists()
    assert not desk.place.checkpoints.exists()


def test_weights_that_were_promised_and_not_sent_are_named(desk: Desk) -> None:
    desk.agree(made().offer)
    desk.fails(WireError, r"layers\.1\..*incomplete or not at all")


def test_weights_that_are_no_numbers_are_refused(desk: Desk) -> None:
    run = made()
    run.groups["layers"] = {n: t * float("nan") for n, t in run.groups["layers"].items()}
    desk.say(Kind.OFFER, run.offer)
    desk.say(Kind.WEIGHTS, Shard(0, 1), weights(run))
    desk.fails(WireError, "not all finite")


# Where a run goes on


def test_it_offers_the_checkpoints_that_it_holds(ready: tuple[Desk, TrustedRun]) -> None:
    desk, run = ready
    (desk.place.checkpoints / "4").mkdir(parents=True)
    (desk.place.checkpoints / "8").mkdir()
    desk.agree(run.offer, resume=6)
    desk.fails(SessionError, r"resumes at step 6; we hold \(4, 8\)")


def test_it_says_what_it_holds_and_what_it_needs(desk: Desk) -> None:
    desk.say(Kind.OFFER, made(cut=SFT).offer)
    with pytest.raises(ChannelError, match="awaited weights or resume"):
        desk.engine.serve()
    (accept,) = desk.heard()
    assert accept.meta == Accept((), ("layers", "bottlenecks"), 0)


def test_step_0_is_the_offered_weights_whatever_another_run_left(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", made(seed=5))
    train(tmp_path / "after", made(seed=0, total=1))
    assert Checkpoints(tmp_path / "after" / "gpuhost" / "checkpoints").held() == (0, 1)
    Checkpoints(tmp_path / "after" / "clinic" / "checkpoints").drop_after(-1)
    after = train(tmp_path / "after", made(seed=5))
    assert after.losses == alone.losses


def test_an_evaluation_leaves_the_checkpoints_alone(tmp_path: Path) -> None:
    train(tmp_path, made(total=2))
    held = Checkpoints(tmp_path / "gpuhost" / "checkpoints").held()
    desk = desk_at(tmp_path)
    run = made(total=2)
    desk.agree(msgspec.structs.replace(run.offer, purpose="evaluate"), resume=held[-1])
    desk.say(Kind.FINISH, Finish(False))
    desk.engine.serve()
    assert [f.kind for f in desk.heard()] == [Kind.ACCEPT, Kind.READY, Kind.CLOSED]
    assert Checkpoints(tmp_path / "gpuhost" / "checkpoints").held() == held


# Steps


def step(*, lengths: tuple[int, ...] = (3, 2), micro_batch: int = 0, of: int = 1) -> StepTensor:
    return StepTensor(0, micro_batch, of, "train", 3, True, lengths, 0)


def rows(count: int = 5, width: int = 32) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(0))


def payload(x_ND: Tensor) -> bytes:
    return encode((to_part("x", x_ND),))


def test_an_optimiser_step_follows_the_last_micro_batch_and_no_other(
    ready: tuple[Desk, TrustedRun],
) -> None:
    desk, run = ready
    told: list[object] = []
    desk.engine._observe = told.append
    desk.agree(run.offer)
    for i in (0, 1):
        desk.say(Kind.ACTIVATION, step(micro_batch=i, of=2), payload(rows()))
    desk.say(Kind.GRADIENT, step(micro_batch=0, of=2, lengths=()), payload(rows()))
    with pytest.raises(ChannelError, match=r"awaited activation or gradient.* of step 0"):
        desk.engine.serve()
    assert [type(event).__name__ for event in told] == ["Began"]
    kinds = [frame.kind for frame in desk.heard()]
    assert kinds[2:] == [Kind.OUTPUT, Kind.OUTPUT, Kind.INPUT_GRADIENT]


def test_what_it_answers_names_what_it_answers(ready: tuple[Desk, TrustedRun]) -> None:
    desk, run = ready
    desk.agree(run.offer)
    desk.say(Kind.ACTIVATION, step(), payload(rows()))
    desk.say(Kind.GRADIENT, step(lengths=()), payload(rows()))
    desk.say(Kind.CHECKPOINT, Step(1))
    desk.say(Kind.FINISH, Finish(True))
    desk.engine.serve()
    heard = desk.heard()
    replies = {frame.kind: frame.meta for frame in heard if isinstance(frame.meta, StepTensor)}
    assert {kind: meta.reply_to for kind, meta in replies.items()} == {
        Kind.OUTPUT: 3,
        Kind.INPUT_GRADIENT: 4,
    }
    assert all(meta.lengths == () for meta in replies.values())
    assert [frame.kind for frame in heard[-3:]] == [Kind.SAVED, Kind.WEIGHTS, Kind.CLOSED]
    assert Checkpoints(desk.place.checkpoints).held() == (0, 1)


def activation(desk: Desk, meta: StepTensor, x_ND: Tensor) -> None:
    desk.say(Kind.ACTIVATION, meta, payload(x_ND))


@pytest.mark.parametrize(
    ("do", "error", "sentence"),
    [
        (lambda d: activation(d, step(), rows(4)), WireError, "4"),
        (lambda d: activation(d, step(), rows(5, 31)), WireError, "31"),
        (lambda d: activation(d, step(lengths=(9, 2)), rows(11)), WireError, "padded to 3"),
        (lambda d: activation(d, step(), rows() * float("nan")), WireError, "NaN"),
        (lambda d: activation(d, step(of=0), rows()), SessionError, "step 0"),
        (lambda d: d.say(Kind.GRADIENT, step(), payload(rows())), SessionError, "gradient"),
        (lambda d: d.say(Kind.CHECKPOINT, Step(3)), SessionError, "names step 3"),
        (lambda d: d.say(Kind.OFFER, made().offer), SessionError, "offer by trusted"),
        (lambda d: d.say(Kind.OUTPUT, step(), payload(rows())), SessionError, "may not send"),
    ],
    ids=[
        *("too few rows", "too narrow", "longer than its width", "nan", "a step of none"),
        *("gradient first", "another step", "second offer", "our own word"),
    ],
)
def test_a_trusted_party_that_breaks_the_rules_is_not_served(
    ready: tuple[Desk, TrustedRun],
    do: Callable[[Desk], None],
    error: type[Exception],
    sentence: str,
) -> None:
    desk, run = ready
    desk.agree(run.offer)
    do(desk)
    assert desk.fails(error, sentence) == [Kind.ACCEPT, Kind.READY]


def test_the_first_word_has_to_be_an_offer(desk: Desk) -> None:
    desk.say(Kind.RESUME, Resume(0, 0))
    assert desk.fails(SessionError, "began with resume; expected offer") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"model": TrunkModel("os.system", {"hidden_size": 32})},
        {"model": TrunkModel("bert", {"hidden_size": 32, "auto_map": "x"})},
        {"cut": CutSpec(3, 1, *(made().offer.cut.lower,) * 2)},
        {"cut": CutSpec(1, 60_000, *(made().offer.cut.lower,) * 2)},
        {"codecs": msgspec.structs.replace(made().offer.codecs, activation="pickle")},
    ],
    ids=["no such model", "no such field", "cut backwards", "too deep", "no such codec"],
)
def test_an_offer_that_fits_no_model_of_ours_is_refused_before_an_answer(
    desk: Desk, changes: dict[str, object]
) -> None:
    desk.say(Kind.OFFER, msgspec.structs.replace(made().offer, **changes))  # type: ignore[arg-type]
    assert desk.fails(WireError, r"\w") == []


def test_our_own_policy_may_say_no(ready: tuple[Desk, TrustedRun]) -> None:
    desk, run = ready
    desk.agree(run.offer)
    long = msgspec.structs.replace(step(lengths=(9_000,)), width=9_000)
    activation(desk, long, rows(9_000))
    assert desk.fails(RefusedError, "max_length") == [Kind.ACCEPT, Kind.READY]


def test_a_silent_trusted_party_is_named(desk: Desk) -> None:
    with pytest.raises(ChannelError, match="trusted sent nothing"):
        desk.engine.serve()
