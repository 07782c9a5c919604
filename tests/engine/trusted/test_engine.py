"""The trusted party's loop: against the unsplit loop, against itself undisturbed, and against bad peers."""

import copy
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.channel import PeerRestarted, pair
from splitlearn.channel.base import Released
from splitlearn.channel.memory import MemoryChannel
from splitlearn.codecs.base import to_part
from splitlearn.engine.events import Began, Evaluated, Event, RolledBack, StepDone
from splitlearn.engine.plain import evaluate_plain
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.trusted.engine import EVALUATION_GROUP, TrustedEngine
from splitlearn.engine.trusted.run import IN_FLIGHT, TrustedRun
from splitlearn.errors import ChannelError, PeerError, RefusedError, SessionError, WireError
from splitlearn.roles import Kind
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.bottleneck import PcaBasis, fit_pca
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import Mode, freeze
from splitlearn.split.merge import load_merged, merged, save_merged
from splitlearn.split.weights import load_weights, trunk_groups
from splitlearn.tasks.batches import Batch
from splitlearn.wire import frames
from splitlearn.wire.messages import Accept, Empty, Meta, Offer, Settlement, StepTensor
from splitlearn.wire.tensors import Part, encode
from tests.rig import (
    COMPUTE,
    TRUSTED,
    ComputeThread,
    Killing,
    batch_of,
    compute_party,
    run_in_memory,
    train_unsplit,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.settling import ScriptedLog
from tests.tiny import tiny_batch, tiny_model

Steps = Callable[[int], Sequence[Batch]]
CUT = Cut(1, 3)


def stream(model: PreTrainedModel, *, micro: int = 2, rows: int = 3) -> Steps:
    """Other micro-batches at each step, the same whenever they are asked for."""
    lengths = (5, 3, 4)[:rows]
    return lambda step: [
        batch_of(tiny_batch(model, lengths=lengths, width=5, seed=100 * step + i))
        for i in range(micro)
    ]


def unsplit(
    model: PreTrainedModel, run: TrustedRun, *, steps: Steps, mode: Mode, train_bottom: bool
) -> list[float]:
    freeze(model, cut=CUT, mode=mode, train_bottom=train_bottom)
    return train_unsplit(model, run, steps=steps, seed=run.offer.seed)


@pytest.mark.parametrize(
    ("mode", "train_bottom"), [("full", True), ("full", False), ("features", False)]
)
def test_many_micro_batches_neither_deadlock_nor_change_a_number(
    tmp_path: Path, mode: Mode, train_bottom: bool
) -> None:
    model = tiny_model("bert")
    whole, steps = copy.deepcopy(model), stream(model, micro=5 * IN_FLIGHT, rows=1)
    run = trusted_run(model, cut=CUT, total=2, mode=mode, train_bottom=train_bottom)
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == unsplit(whole, run, steps=steps, mode=mode, train_bottom=train_bottom)
    assert (result.trunk == {}) is (mode == "features")
    assert result.engine.rows == {"train": 2 * 5 * IN_FLIGHT * 5, "evaluate": 0}
    assert len(result.engine.step_s) == 2


@pytest.mark.parametrize("window", [2 * IN_FLIGHT, 3 * IN_FLIGHT])
def test_a_channel_of_half_the_usual_window_does_not_deadlock_either(
    tmp_path: Path, window: int
) -> None:
    model = tiny_model("bert")
    ours, theirs = pair(window=window)
    run = trusted_run(model, cut=CUT, total=1)
    ComputeThread(compute_party(tmp_path), theirs)
    engine = trusted_engine(run, trusted_party(tmp_path), ours)
    engine.train(stream(model, micro=4 * IN_FLIGHT, rows=1))
    engine.finish()
    assert len(engine.losses) == 1


def test_an_evaluation_may_be_longer_than_a_step_may(tmp_path: Path) -> None:
    model = tiny_model("distilbert")
    whole, steps = copy.deepcopy(model), stream(model)
    rows = [steps(step)[0] for step in range(2 * EVALUATION_GROUP + 1)]
    told: list[Event] = []
    ours, theirs = pair()
    ComputeThread(compute_party(tmp_path), theirs)
    run = trusted_run(model, cut=CUT, total=1)
    engine = trusted_engine(run, trusted_party(tmp_path), ours, observe=told.append)
    found = engine.evaluate(rows)
    for one, other in zip(
        found, evaluate_plain(whole, batches=rows, observe=lambda _: None), strict=True
    ):
        assert torch.equal(one["logits"], other["logits"])
    assert [e.done for e in told if isinstance(e, Evaluated)] == list(range(1, len(rows) + 1))
    assert engine.rows == {"train": 0, "evaluate": 12 * len(rows)}


def bases(model: PreTrainedModel, cut: Cut) -> dict[str, PcaBasis]:
    public = [tiny_batch(model, lengths=(9, 8, 9, 9), width=9, seed=7).inputs]
    return {
        where: fit_pca(model, public, layer=layer, rank=bottleneck.rank)
        for where, bottleneck, layer in (
            ("lower", cut.lower, cut.first),
            ("upper", cut.upper, cut.last),
        )
        if bottleneck.method == "pca"
    }


def put_together(run: TrustedRun, weights: dict[str, Tensor], cut: Cut) -> PreTrainedModel:
    trunk = build_trunk(run.offer.model, cut=run.offer.cut)
    for group, names in trunk_groups(trunk).items():
        load_weights(trunk, {name: weights[name] for name in names}, group=group)
    return merged(run.local, trunk=trunk, cut=cut)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cut",
    [
        Cut(1, 3, lower=Bottleneck("pca", 6)),
        Cut(1, 3, upper=Bottleneck("pca", 6)),
        Cut(1, 3, lower=Bottleneck("sft", 6)),
        Cut(1, 3, upper=Bottleneck("sft", 6)),
        Cut(1, 3, lower=Bottleneck("sft", 5), upper=Bottleneck("pca", 4)),
    ],
    ids=["lower pca", "upper pca", "lower sft", "upper sft", "both"],
)
def test_a_low_rank_cut_trains_and_its_merged_model_gives_the_split_models_logits(
    tmp_path: Path, cut: Cut
) -> None:
    model = tiny_model("bert")
    batch = batch_of(tiny_batch(model))
    run = trusted_run(model, cut=cut, total=6, bases=bases(model, cut))
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)
    engine = trusted_engine(run, trusted_party(tmp_path), ours)
    engine.train(lambda _: [batch])
    (split,) = engine.evaluate([batch])
    trunk = engine.finish(fetch=True)
    thread.join(20)
    assert thread.error is None
    assert engine.losses[-1] < engine.losses[0]
    assert (run.entrance, run.exit) == (cut.entrance(32), cut.exit(32))
    whole = put_together(run, trunk, cut)
    save_merged(tmp_path / "model", model=whole, cut=cut)
    for each in (whole, load_merged(tmp_path / "model")):
        with torch.no_grad():
            assert torch.equal(each(**batch.inputs).logits, split["logits"])


class Killed(Exception):
    """What stands for a kill -9 in the middle of a step."""


def undisturbed(tmp_path: Path, *, total: int) -> list[float]:
    model = tiny_model("bert", dropout=0.1)
    run = trusted_run(model, cut=CUT, total=total)
    return run_in_memory(tmp_path / "undisturbed", run, steps=stream(model)).losses


def test_a_killed_trusted_party_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path, total=7)
    model = tiny_model("bert", dropout=0.1)
    steps = stream(model)
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)

    def killing(step: int) -> Sequence[Batch]:
        if step == 5:
            raise Killed
        return steps(step)

    party = trusted_party(tmp_path)
    engine = trusted_engine(trusted_run(model, cut=CUT, total=7, every=2), party, ours)
    with pytest.raises(Killed):
        engine.train(killing)
    party.log.close()

    again = tiny_model("bert", dropout=0.1)
    told: list[Event] = []
    engine = trusted_engine(
        trusted_run(again, cut=CUT, total=7, every=2),
        trusted_party(tmp_path),
        ours.restart(),
        observe=told.append,
    )
    engine.train(steps)
    engine.finish()
    thread.join(20)
    assert thread.error is None
    assert engine.losses == expected
    assert Began(4, "compute") in told
    assert [e.step for e in told if isinstance(e, StepDone)] == [4, 5, 6]


@pytest.mark.parametrize("step", [0, 3, 6])
def test_a_killed_compute_party_costs_only_time(tmp_path: Path, step: int) -> None:
    expected = undisturbed(tmp_path, total=7)
    model = tiny_model("bert", dropout=0.1)
    ours, theirs = pair()
    killing = Killing(stream(model), step, theirs, lambda: compute_party(tmp_path))
    told: list[Event] = []
    engine = trusted_engine(
        trusted_run(model, cut=CUT, total=7, every=2),
        trusted_party(tmp_path),
        ours,
        observe=told.append,
    )
    engine.train(killing)
    engine.finish()
    assert killing.times == 1
    assert told.count(RolledBack("compute")) == 1
    assert [e.step for e in told if isinstance(e, Began)] == [0, 2 * (step // 2)]
    assert engine.losses == expected


def test_a_compute_party_that_saved_less_takes_the_trusted_one_back_with_it(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path, total=5)
    model = tiny_model("bert", dropout=0.1)
    steps = stream(model)
    ours, theirs = pair()
    compute = compute_party(tmp_path)
    ComputeThread(compute, theirs)
    held = Checkpoints(compute.folder / "checkpoints")
    forgotten: list[tuple[int, ...]] = []

    def forgetting(step: int) -> Sequence[Batch]:
        if step == 4 and not forgotten:
            forgotten.append(held.held())
            compute.log.close()
            held.drop_after(2)  # as if killed before its second checkpoint was written
            ComputeThread(compute_party(tmp_path), theirs.restart())
        return steps(step)

    told: list[Event] = []
    engine = trusted_engine(
        trusted_run(model, cut=CUT, total=5, every=2),
        trusted_party(tmp_path),
        ours,
        observe=told.append,
    )
    engine.train(forgetting)
    assert forgotten == [(2, 4)]
    assert [e.step for e in told if isinstance(e, Began)] == [0, 2]
    assert engine.losses == expected


def test_without_a_common_checkpoint_a_run_does_not_go_on(tmp_path: Path) -> None:
    model = tiny_model("bert")
    ours, theirs = pair()
    compute = compute_party(tmp_path)
    ComputeThread(compute, theirs)
    party = trusted_party(tmp_path)
    engine = trusted_engine(trusted_run(model, cut=CUT, total=6, every=2), party, ours)

    def losing(step: int) -> Sequence[Batch]:
        if step == 5:
            compute.log.close()
            Checkpoints(compute.folder / "checkpoints").drop_after(-1)
            ComputeThread(compute_party(tmp_path), theirs.restart())
        return stream(model)(step)

    with pytest.raises(SessionError, match=r"compute holds no checkpoint.*\(2, 4\)"):
        engine.train(losing)
    assert Checkpoints(party.folder / "checkpoints").held() == (2, 4)


def test_a_finished_run_started_again_has_nothing_left_to_do(tmp_path: Path) -> None:
    model = tiny_model("bert")
    first = run_in_memory(
        tmp_path, trusted_run(model, cut=CUT, total=3, every=2), steps=stream(model)
    )
    again = trusted_run(tiny_model("bert"), cut=CUT, total=3, every=2)
    second = run_in_memory(tmp_path, again, steps=lambda _: pytest.fail("trained again"))
    assert second.losses == first.losses
    assert all(torch.equal(second.trunk[name], first.trunk[name]) for name in first.trunk)
    assert second.engine.sent[Kind.WEIGHTS] == 0


def test_under_a_policy_without_gradients_none_leaves(tmp_path: Path) -> None:
    model = tiny_model("bert")
    ours, theirs = pair()
    ComputeThread(compute_party(tmp_path), theirs)
    party = trusted_party(tmp_path, policy="strict.toml")
    engine = trusted_engine(trusted_run(model, cut=CUT, total=1), party, ours)
    with pytest.raises(RefusedError, match="gradient"):
        engine.train(stream(model))
    assert Kind.GRADIENT not in engine.sent


class Peer(threading.Thread):
    """A compute party by script: agrees to everything, then `bend`s each answer to an activation.

    It has no gate, no session and no model: what it sends it makes byte by byte.
    """

    def __init__(self, channel: MemoryChannel, *, bend: Callable[["Answer"], None]) -> None:
        super().__init__(daemon=True)
        self._channel, self._bend, self._seq = channel, bend, 0
        self.start()

    def run(self) -> None:
        try:
            while True:
                frame = self._channel.receive(timeout_s=20)
                if isinstance(frame.meta, Offer):
                    log = ScriptedLog(frame.meta, me=COMPUTE, peer=TRUSTED)
                log.hear(frame)
                if frame.kind is Kind.SETTLE:
                    assert isinstance(frame.meta, Settlement)
                    self._say(Kind.SETTLED, log.answer(frame.meta))
                elif frame.kind is Kind.OFFER:
                    self._say(Kind.ACCEPT, Accept((), (), 0))
                elif frame.kind is Kind.RESUME:
                    self._say(Kind.READY, Empty())
                elif isinstance(frame.meta, StepTensor) and frame.kind is Kind.ACTIVATION:
                    answer = Answer(frame.meta, torch.randn(sum(frame.meta.lengths), 32))
                    self._bend(answer)
                    self._seq += answer.left_out
                    payload = encode(answer.parts or (to_part("x", answer.x_ND),))
                    for _ in range(answer.times):
                        self._say(answer.kind, answer.meta, payload)
        except (ChannelError, PeerError):
            return

    def _say(self, kind: Kind, meta: Meta, payload: bytes = b"") -> None:
        self._seq += 1
        raw = frames.encode(kind, seq=self._seq, meta=meta, payload=payload)
        self._channel.send(Released(kind=kind, seq=self._seq, raw=raw), deadline_s=20)


class Answer:
    """An honest answer to an activation, for a test to bend."""

    def __init__(self, asked: StepTensor, x_ND: Tensor) -> None:
        self.kind, self.x_ND, self.times, self.left_out = Kind.OUTPUT, x_ND, 1, 0
        self.parts: tuple[Part, ...] = ()
        self.meta = msgspec.structs.replace(asked, lengths=(), reply_to=0)


def facing(
    tmp_path: Path, bend: Callable[[Answer], None], *, deadline_s: float = 20.0
) -> tuple[TrustedEngine, Steps]:
    model = tiny_model("bert")
    ours, theirs = pair()
    Peer(theirs, bend=bend)
    run = trusted_run(model, cut=CUT, total=1, deadline_s=deadline_s)
    return trusted_engine(run, trusted_party(tmp_path), ours), stream(model)


def set_(**changes: object) -> Callable[[Answer], None]:
    def bend(answer: Answer) -> None:
        for name, value in changes.items():
            setattr(answer, name, value)

    return bend


def says(**changes: object) -> Callable[[Answer], None]:
    def bend(answer: Answer) -> None:
        answer.meta = msgspec.structs.replace(answer.meta, **changes)

    return bend


def poisoned(value: float) -> Callable[[Answer], None]:
    def bend(answer: Answer) -> None:
        answer.x_ND[1, 2] = value

    return bend


@pytest.mark.parametrize(
    ("bend", "error", "sentence"),
    [
        (poisoned(float("nan")), WireError, "NaN"),
        (poisoned(float("inf")), WireError, "infinit"),
        (poisoned(1e9), WireError, "norm"),
        (says(step=1), SessionError, "step 1"),
        (says(micro_batch=1), SessionError, "micro-batch 1"),
        (says(micro_batches=3), SessionError, "of 3"),
        (says(phase="evaluate"), SessionError, "evaluate"),
        (set_(kind=Kind.INPUT_GRADIENT), SessionError, "input_gradient"),
        (set_(times=2), SessionError, "output"),
        (set_(left_out=1), SessionError, "runs ahead"),
        (set_(left_out=-1), SessionError, "repeats"),
        (set_(x_ND=torch.randn(12, 31)), WireError, "31"),
        (set_(x_ND=torch.randn(11, 32)), WireError, "11"),
        (set_(x_ND=torch.randn(12, 32).double()), (WireError, RefusedError), "F64"),
        (set_(parts=(to_part("other", torch.randn(12, 32)),)), WireError, "other"),
    ],
    ids=[
        *("nan", "infinite", "too large", "wrong step", "wrong micro-batch", "wrong count"),
        *("wrong phase", "wrong kind", "twice", "number left out", "number again", "too narrow"),
        *("too few rows", "wrong dtype", "wrong part"),
    ],
)
def test_a_peer_that_answers_wrongly_is_not_believed(
    tmp_path: Path,
    bend: Callable[[Answer], None],
    error: type[Exception] | tuple[type[Exception], ...],
    sentence: str,
) -> None:
    engine, steps = facing(tmp_path, bend)
    before = {name: tensor.clone() for name, tensor in engine.run.local.state_dict().items()}
    with pytest.raises(error, match=sentence):
        engine.train(steps)
    assert engine.losses == []
    after = engine.run.local.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_silent_peer_is_named_with_the_step_and_the_awaited_message(tmp_path: Path) -> None:
    engine, steps = facing(tmp_path, set_(times=0), deadline_s=0.2)
    with pytest.raises(ChannelError, match="awaited output of step 0 from compute"):
        engine.train(steps)


def test_an_engine_ended_before_it_began_has_nothing_to_log(tmp_path: Path) -> None:
    party = trusted_party(tmp_path)
    ours, _ = pair()
    engine = trusted_engine(trusted_run(tiny_model("bert"), cut=CUT, total=1), party, ours)
    engine.end(PeerRestarted("before it began"))
    assert party.log.spent("run") == {}
