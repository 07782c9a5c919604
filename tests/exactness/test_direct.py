"""Ten steps of a direct chain of two and three compute parties against those of the unsplit model.

As `test_chain`, but rows go from one compute party to the next without passing the trusted party.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from splitlearn.audit import HopHead, Payload, read_records, reconcile, verify
from splitlearn.audit.findings import Exit
from splitlearn.engine.events import Began, Event, RolledBack
from splitlearn.engine.job.prepare import prepare
from splitlearn.engine.plain import evaluate_plain
from splitlearn.engine.trusted.run import IN_FLIGHT
from splitlearn.manifest import load_job
from splitlearn.policy import STEP_KINDS
from splitlearn.roles import Kind
from splitlearn.split.freeze import Mode
from splitlearn.tasks.batches import Batch
from tests.chains import (
    Ended,
    Host,
    chain_engine,
    chain_run,
    hosts,
    names,
    run_chain,
    train_reseeded,
)
from tests.exactness.test_chain import (
    CHAINS,
    CUT,
    STEPS,
    Steps,
    assert_same_weights,
    run_without_dropout,
    stream,
    whole_weights,
)
from tests.jobs import Changes, make_job
from tests.neighbours import Street
from tests.rig import batch_of
from tests.tiny import tiny_batch, tiny_model

# Which party is restarted, at the beginning of which step.
KILLS = [(0, 3), (1, 0), (1, 4), (2, 3)]


@pytest.mark.parametrize(("order", "micro"), [("1f1b", 1), ("1f1b", 3), ("fill-drain", 3)])
@pytest.mark.parametrize("starts", CHAINS, ids=["two parties", "three parties"])
def test_a_direct_chain_with_dropout_is_the_unsplit_run(
    tmp_path: Path, starts: tuple[int, ...], order: str, micro: int
) -> None:
    model = tiny_model("bert", layers=5, dropout=0.2)
    whole, steps = copy.deepcopy(model), stream(model, micro=micro)
    run = chain_run(
        *(model,),
        cut=CUT,
        starts=starts,
        total=STEPS,
        order=order,
        in_flight=2,
        seed=7,
        direct=True,
    )
    ended = run_chain(tmp_path, run, steps=steps)
    losses, weights = train_reseeded(whole, steps=steps, run=run, cut=CUT, starts=starts)
    assert ended.losses == losses
    assert_same_weights(whole_weights(ended, ended.trunk), dict(weights))
    assert_no_row_went_round(ended)


@pytest.mark.parametrize(
    ("mode", "train_bottom"), [("full", True), ("full", False), ("features", False)]
)
@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_without_dropout_it_is_the_very_loop_of_one_process(
    tmp_path: Path, family: str, mode: Mode, train_bottom: bool
) -> None:
    ended = run_without_dropout(tmp_path, family, mode=mode, train_bottom=train_bottom, direct=True)
    assert_no_row_went_round(ended)


def assert_no_row_went_round(ended: Ended) -> None:
    """The trusted party's link bears the outer cuts only, and its conversation with an inner party no row."""
    last = len(ended.hosts) - 1
    for number, host in enumerate(ended.hosts):
        kinds = {
            (record.direction, record.kind)
            for _, record in read_records(host.clinic.log.folder)
            if isinstance(record, Payload) and record.kind in STEP_KINDS
        }
        assert {kind for _, kind in kinds} <= (
            ({Kind.ACTIVATION, Kind.INPUT_GRADIENT} if not number else set())
            | ({Kind.OUTPUT, Kind.GRADIENT} if number == last else set())
        )
        assert bool(kinds) is (number in {0, last})


EXACT = dict.fromkeys(
    ("activation", "output", "gradient", "input_gradient", "inner", "inner_gradient"), "identity"
)
CODED = {"inner": "int8+zstd", "inner_gradient": "fp16", "output": "fp16"}


@pytest.mark.parametrize(
    "changes",
    [
        {
            "cut": {"train_bottom": True},
            "cut.lower": {"method": "sft", "rank": 6},
            "cut.upper": {"method": "sft", "rank": 4},
            "codec": EXACT,
        },
        # To code again what these have coded changes nothing.
        {"cut": {"mode": "full"}, "codec": CODED},
    ],
    ids=["narrow", "coded"],
)
def test_a_job_gives_what_it_gives_relayed(tmp_path: Path, changes: Changes) -> None:
    losses, found_of = [], {}
    for direct in (False, True):
        table = {"party": "farm", "dial": "127.0.0.1:2", "first": 2, "direct": direct}
        run = {"folder": str(direct)}
        job = make_job(tmp_path / "clinic", changes={**changes, "[chain]": table, "run": run})
        found_of[direct] = prepare(load_job(job))
    for direct, found in found_of.items():
        folder = tmp_path / str(direct)
        street = Street() if direct else None
        parties = [
            Host.start(folder, name, policy="demo.toml", street=street)
            for name in ("gpuhost", "farm")
        ]
        engine = chain_engine(folder, found.run, parties)
        engine.train(found.data.steps)
        trunk = engine.finish(fetch=True)
        engine.end(None)
        for host in parties:
            host.close()
        assert trunk
        losses.append(engine.losses)
    relayed, straight = losses
    assert straight == relayed


def test_an_evaluation_through_a_direct_chain_gives_the_unsplit_models_logits(
    tmp_path: Path,
) -> None:
    model = tiny_model("roberta", layers=5)
    whole, steps = copy.deepcopy(model), stream(model)
    rows = [steps(step)[0] for step in range(70)]
    run = chain_run(model, cut=CUT, starts=(2, 3), total=1, direct=True)
    engine = chain_engine(tmp_path, run, parties := hosts(tmp_path, run))
    found = engine.evaluate(rows)
    expected = evaluate_plain(whole, batches=rows, observe=lambda _: None)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["logits"], other["logits"])
    engine.finish()
    engine.end(None)
    for host in parties:
        host.close()


def killing(steps: Steps, parties: Sequence[object], killed: int, step: int) -> Steps:
    """The steps, at one of which a party is killed and started anew."""
    done: list[int] = []

    def given(now: int) -> Sequence[Batch]:
        if now == step and not done:
            done.append(now)
            parties[killed].killed()  # type: ignore[attr-defined]
        return steps(now)

    return given


@pytest.mark.parametrize(
    ("mode", "train_bottom", "kills"), [("full", False, KILLS), ("features", False, KILLS[2:3])]
)
def test_a_killed_party_rolls_everybody_back_and_costs_only_time(
    tmp_path: Path, mode: Mode, train_bottom: bool, kills: list[tuple[int, int]]
) -> None:
    def made() -> PreTrainedModel:
        return tiny_model("bert", layers=5, dropout=0.1)

    def run_of(model: PreTrainedModel) -> object:
        return chain_run(
            *(model,),
            cut=CUT,
            starts=(2, 3),
            total=6,
            every=2,
            mode=mode,
            train_bottom=train_bottom,
            direct=True,
        )

    model = made()
    undisturbed = run_chain(tmp_path / "undisturbed", run_of(model), steps=stream(model))  # type: ignore[arg-type]
    for killed, step in kills:
        folder = tmp_path / f"{killed}-{step}"
        model = made()
        run = run_of(model)
        parties = hosts(folder, run)  # type: ignore[arg-type]
        told: list[Event] = []
        engine = chain_engine(folder, run, parties, observe=told.append)  # type: ignore[arg-type]
        engine.train(killing(stream(model), parties, killed, step))
        trunk = engine.finish(fetch=True)
        engine.end(None)
        for host in parties:
            host.close()
        assert RolledBack(f"host{killed}") in told
        assert [e.step for e in told if isinstance(e, Began)] == [0] * 3 + [2 * (step // 2)] * 3
        assert engine.losses == undisturbed.losses
        assert_same_weights(trunk, undisturbed.trunk)
        assert_logs_agree(Ended(engine.losses, trunk, engine, parties))


def test_a_trusted_party_that_is_killed_costs_only_time(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def made() -> PreTrainedModel:
        return tiny_model("bert", layers=5, dropout=0.1)

    undisturbed = run_chain(
        tmp_path / "undisturbed",
        chain_run(model := made(), cut=CUT, starts=(2, 3), total=6, every=2, direct=True),
        steps=stream(model),
    )

    def dying(step: int) -> Sequence[Batch]:
        if step == 3:
            raise Killed
        return stream(model)(step)

    model = made()
    run = chain_run(model, cut=CUT, starts=(2, 3), total=6, every=2, direct=True)
    parties = hosts(tmp_path, run)
    with pytest.raises(Killed):
        chain_engine(tmp_path, run, parties).train(dying)
    for host in parties:
        host.reborn()
    engine = chain_engine(tmp_path, run, parties)
    engine.train(stream(model))
    trunk = engine.finish(fetch=True)
    engine.end(None)
    for host in parties:
        host.close()
    assert engine.losses == undisturbed.losses
    assert_same_weights(trunk, undisturbed.trunk)
    assert_logs_agree(Ended(engine.losses, trunk, engine, parties))


def assert_logs_agree(ended: Ended) -> None:
    """Each party's with the trusted party's, and the two of each hop with one another."""
    for host in ended.hosts:
        theirs = host.party.log.folder
        assert verify(theirs).ok, verify(theirs).findings
        assert reconcile(host.clinic.log.folder, theirs).exit is Exit.CLEAN
        assert any(isinstance(record, HopHead) for _, record in read_records(theirs))
    folders = [host.party.log.folder.parent for host in ended.hosts]
    for number, (one, two) in enumerate(pairwise(folders)):
        found = reconcile(one / f"audit-host{number + 1}", two / f"audit-host{number}")
        assert found.exit is Exit.CLEAN, (found.differences, found.here.findings)
        assert found.matched > 10


def test_the_logs_of_each_hop_agree_and_their_heads_stand_in_the_log_that_is_countersigned(
    tmp_path: Path,
) -> None:
    model = tiny_model("bert", layers=5)
    run = chain_run(model, cut=CUT, starts=(2, 3), total=4, direct=True)
    ended = run_chain(tmp_path, run, steps=stream(model))
    assert_logs_agree(ended)
    folders = [host.party.log.folder.parent for host in ended.hosts]
    assert reconcile(folders[0] / "audit-host1", folders[2] / "audit-host1").exit is not Exit.CLEAN
    # Who rewrites the log of a hop stands against a log that others have countersigned.
    segment = folders[0] / "audit-host1" / "log" / "000000.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:3]))
    found = [finding for finding in verify(folders[0] / "audit").findings if finding.exit]
    assert found
    assert all("of audit-host1: that log was changed, or cut short" in f.sentence for f in found)


@pytest.mark.parametrize("mode", ["full", "features"])
def test_many_micro_batches_over_channels_of_half_the_window_do_not_deadlock(
    tmp_path: Path, mode: Mode
) -> None:
    model = tiny_model("distilbert", layers=5)
    run = chain_run(
        *(model,),
        cut=CUT,
        starts=(2, 3),
        total=1,
        mode=mode,
        train_bottom=False,
        in_flight=IN_FLIGHT,
        direct=True,
    )
    parties = hosts(tmp_path, run, window=2 * IN_FLIGHT)
    engine = chain_engine(tmp_path, run, parties)
    batch = batch_of(tiny_batch(model, lengths=(4,), width=4))
    engine.train(lambda _: [batch] * (5 * IN_FLIGHT))
    engine.finish()
    assert len(engine.losses) == 1
    assert names(run) == ["host0", "host1", "host2"]
