"""Ten steps of a chain of two and three compute parties against ten steps of the unsplit model.

To the bit: float32, identity codec, one thread. With dropout on, the unsplit model draws its dropout
as the stages do, from a generator that is seeded anew where each stage begins.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.audit import Payload, read_records, reconcile, verify
from splitlearn.audit.findings import Exit
from splitlearn.engine.events import Began, Event, RolledBack
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.engine.plain import evaluate_plain
from splitlearn.engine.trusted.run import IN_FLIGHT
from splitlearn.policy.accounting import releases_of
from splitlearn.roles import Kind
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.cut import Bottleneck, Cut, spec_of
from splitlearn.split.freeze import Mode, freeze
from splitlearn.split.merge import merged
from splitlearn.split.weights import GROUPS, load_weights, trunk_groups
from splitlearn.tasks.batches import Batch
from tests.chains import Ended, chain_engine, chain_run, hosts, run_chain, train_reseeded
from tests.rig import batch_of, train_unsplit
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 4)
# Where the further parties' layers begin: three parties in all, and four.
CHAINS = [(2,), (2, 3)]
STEPS = 10
Steps = Callable[[int], Sequence[Batch]]


def stream(model: PreTrainedModel, *, micro: int = 3) -> Steps:
    return lambda step: [
        batch_of(tiny_batch(model, lengths=(9 - i, 4 + step % 3, 6), width=9, seed=100 * step + i))
        for i in range(micro)
    ]


def whole_weights(ended: Ended, trunk: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of the model put together again."""
    run = ended.engine.run
    whole = build_trunk(run.offer.model, cut=spec_of(CUT))
    trunk = {**run.groups["layers"], **trunk}  # what never trains does not come home
    for group in GROUPS:
        names = trunk_groups(whole)[group]
        load_weights(whole, {name: trunk[name] for name in names}, group=group)
    return merged(run.local, trunk=whole, cut=CUT).state_dict()  # type: ignore[arg-type]


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def run_without_dropout(
    folder: Path, family: str, *, mode: Mode, train_bottom: bool, direct: bool = False
) -> Ended:
    """A chain of three compute parties, held to the very loop of one process."""
    model = tiny_model(family, layers=5)
    whole, steps = copy.deepcopy(model), stream(model, micro=2)
    settings = {"mode": mode, "train_bottom": train_bottom, "direct": direct}
    run = chain_run(model, cut=CUT, starts=(2, 3), total=STEPS, **settings)  # type: ignore[arg-type]
    before = {name: t for hop in run.hops for name, t in hop.groups["layers"].items()}
    ended = run_chain(folder, run, steps=steps)
    freeze(whole, cut=CUT, mode=mode, train_bottom=train_bottom)
    assert ended.losses == train_unsplit(whole, run, steps=steps)
    assert (ended.trunk == {}) is (mode == "features")
    assert_same_weights(whole_weights(ended, ended.trunk or before), whole.state_dict())
    return ended


@pytest.mark.parametrize("order", ["1f1b", "fill-drain"])
@pytest.mark.parametrize("starts", CHAINS, ids=["three parties", "four parties"])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_chain_with_dropout_is_the_unsplit_run(
    tmp_path: Path, starts: tuple[int, ...], order: str, in_flight: int
) -> None:
    model = tiny_model("bert", layers=5, dropout=0.2)
    whole, steps = copy.deepcopy(model), stream(model)
    run = chain_run(
        model, cut=CUT, starts=starts, total=STEPS, order=order, in_flight=in_flight, seed=7
    )
    ended = run_chain(tmp_path, run, steps=steps)
    losses, weights = train_reseeded(whole, steps=steps, run=run, cut=CUT, starts=starts)
    assert ended.losses == losses
    assert_same_weights(whole_weights(ended, ended.trunk), dict(weights))


def test_what_one_dropout_module_drops_at_both_ends_of_an_encoder_is_the_unsplit_runs(
    tmp_path: Path,
) -> None:
    model = tiny_model("t5", layers=5, dropout=0.2)
    whole, steps = copy.deepcopy(model), stream(model, micro=2)
    run = chain_run(model, cut=CUT, starts=(2,), total=STEPS, seed=7)
    ended = run_chain(tmp_path, run, steps=steps)
    losses, weights = train_reseeded(whole, steps=steps, run=run, cut=CUT, starts=(2,))
    assert ended.losses == losses
    assert_same_weights(whole_weights(ended, ended.trunk), dict(weights))


@pytest.mark.parametrize(
    ("mode", "train_bottom"), [("full", True), ("full", False), ("features", False)]
)
@pytest.mark.parametrize("family", ["distilbert", "electra", "roberta", "t5"])
def test_without_dropout_it_is_the_very_loop_of_one_process(
    tmp_path: Path, family: str, mode: Mode, train_bottom: bool
) -> None:
    run_without_dropout(tmp_path, family, mode=mode, train_bottom=train_bottom)


def test_narrow_outer_cuts_change_nothing_about_who_hosts_the_trunk(tmp_path: Path) -> None:
    cut = Cut(1, 4, lower=Bottleneck("sft", 5), upper=Bottleneck("sft", 6))
    trained = []
    for starts in ((), (2,), (2, 3)):
        model = tiny_model("bert", layers=5)
        run = chain_run(model, cut=cut, starts=starts, total=4)
        assert (run.entrance, run.hops[-1].exit) == (5, 6)
        trained.append(run_chain(tmp_path / str(len(starts)), run, steps=stream(model)))
    assert trained[0].losses == trained[1].losses == trained[2].losses
    assert_same_weights(trained[2].trunk, trained[0].trunk)


def test_an_evaluation_through_a_chain_gives_the_unsplit_models_logits(tmp_path: Path) -> None:
    model = tiny_model("roberta", layers=5)
    whole, steps = copy.deepcopy(model), stream(model)
    rows = [steps(step)[0] for step in range(70)]
    run = chain_run(model, cut=CUT, starts=(2, 3), total=1)
    engine = chain_engine(tmp_path, run, hosts(tmp_path, run))
    found = engine.evaluate(rows)
    expected = evaluate_plain(whole, batches=rows, observe=lambda _: None)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["logits"], other["logits"])


@pytest.mark.parametrize(("killed", "step"), [(0, 3), (1, 0), (1, 6), (2, 3)])
def test_a_killed_party_rolls_everybody_back_and_costs_only_time(
    tmp_path: Path, killed: int, step: int
) -> None:
    def made() -> PreTrainedModel:
        return tiny_model("bert", layers=5, dropout=0.1)

    undisturbed = run_chain(
        tmp_path / "undisturbed",
        chain_run(model := made(), cut=CUT, starts=(2, 3), total=7, every=2),
        steps=stream(model),
    )
    model = made()
    run = chain_run(model, cut=CUT, starts=(2, 3), total=7, every=2)
    parties, steps = hosts(tmp_path, run), stream(model)
    told: list[Event] = []
    done: list[int] = []

    def killing(now: int) -> Sequence[Batch]:
        if now == step and not done:
            done.append(now)
            parties[killed].killed()
        return steps(now)

    engine = chain_engine(tmp_path, run, parties, observe=told.append)
    engine.train(killing)
    trunk = engine.finish(fetch=True)
    engine.end(None)
    for host in parties:
        host.close()
    assert [event for event in told if isinstance(event, RolledBack)] == [
        RolledBack(f"host{killed}")
    ]
    assert [e.step for e in told if isinstance(e, Began)] == [0] * 3 + [2 * (step // 2)] * 3
    assert engine.losses == undisturbed.losses
    assert_same_weights(trunk, undisturbed.trunk)


def test_each_partys_log_verifies_and_agrees_with_the_trusted_partys_log_of_it(
    tmp_path: Path,
) -> None:
    model = tiny_model("bert", layers=5)
    run = chain_run(model, cut=CUT, starts=(2, 3), total=4)
    ended = run_chain(tmp_path, run, steps=stream(model))
    salts = {hop.offer.salt for hop in run.hops}
    assert len(salts) == 3
    for number, host in enumerate(ended.hosts):
        ours, theirs = host.clinic.log.folder, host.party.log.folder
        assert verify(ours).ok
        assert verify(theirs).ok
        found = reconcile(ours, theirs)
        assert (found.exit, found.conversations) == (0, 1)
        assert found.matched > 4 * 3 * 4, number
        other = ended.hosts[number - 1].party.log.folder
        assert reconcile(ours, other).exit is not Exit.CLEAN


@pytest.mark.parametrize("order", ["1f1b", "fill-drain"])
def test_many_micro_batches_over_channels_of_half_the_window_do_not_deadlock(
    tmp_path: Path, order: str
) -> None:
    model = tiny_model("distilbert", layers=5)
    run = chain_run(model, cut=CUT, starts=(2, 3), total=1, order=order, in_flight=IN_FLIGHT)
    parties = hosts(tmp_path, run, window=2 * IN_FLIGHT)
    engine = chain_engine(tmp_path, run, parties)
    batch = batch_of(tiny_batch(model, lengths=(4,), width=4))
    engine.train(lambda _: [batch] * (5 * IN_FLIGHT))
    engine.finish()
    assert len(engine.losses) == 1
    assert engine.rows["train"] == 5 * IN_FLIGHT * 4


def test_noise_on_labels_is_on_record_wherever_a_gradient_goes_and_is_drawn_once(
    tmp_path: Path,
) -> None:
    model = tiny_model("bert", layers=5)
    noise = LabelNoise(clip=0.5, noise=2.0, steps_per_epoch=2)
    run = replace(chain_run(model, cut=CUT, starts=(2, 3), total=4), noise=noise)
    ended = run_chain(tmp_path, run, steps=stream(model))
    releases = []
    for host in ended.hosts:
        sent = [
            record
            for _, record in read_records(host.clinic.log.folder)
            if isinstance(record, Payload)
            and (record.kind, record.direction) == (Kind.GRADIENT, "out")
        ]
        assert all(record.dp == noise.record(record.step or 0) for record in sent)
        releases.append(
            releases_of((r.dp.epoch, r.step or 0, r.micro_batch or 0) for r in sent if r.dp)
        )
    assert releases == [2, 2, 2]
