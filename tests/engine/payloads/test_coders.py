"""Codecs that remember: apart by kind and phase, and a resumed run that is the undisturbed one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from splitlearn.audit import Payload, RunOpen
from splitlearn.channel import Released, pair
from splitlearn.codecs import NOBODY, Codec
from splitlearn.engine.job.prepare import prepare
from splitlearn.engine.payloads.coders import Coders
from splitlearn.engine.payloads.kept import Kept
from splitlearn.engine.trusted.engine import TrustedEngine
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import RefusedError, WireError
from splitlearn.manifest import load_job
from splitlearn.manifest.chains import SAMPLES
from splitlearn.policy import foresee, plan_of_offer
from splitlearn.policy import load as load_policy
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch, epoch_order
from splitlearn.wire import frames, tensors
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import CodecSpec, CodecStage
from splitlearn.wire.tensors import Part
from tests.door import records
from tests.jobs import make_job
from tests.rig import (
    POLICIES,
    Around,
    ComputeThread,
    Killing,
    Party,
    batch_of,
    compute_party,
    run_in_memory,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

KINDS = ("activation", "output", "gradient", "input_gradient")
CUT, CODEC, TOTAL, EVERY = Cut(1, 3), "lowrank-4", 7, 2


def coders(name: str = CODEC) -> Coders:
    return Coders(dict.fromkeys(KINDS, name), {}, kept=Kept(Path("nowhere")))


def rows(seed: int) -> Tensor:
    return torch.randn(20, 16, generator=torch.Generator().manual_seed(seed))


def raw(codec: Codec, seed: int) -> bytes:
    return tensors.encode(codec.encode(rows(seed)))


def test_a_codec_without_memory_is_the_same_object_throughout_a_conversation() -> None:
    found = coders("int8")
    assert found.of(Kind.OUTPUT, phase="train") is found.of(Kind.OUTPUT, phase="evaluate")


def test_kinds_and_evaluations_do_not_disturb_what_training_remembers() -> None:
    found, expected = coders(), coders()
    for seed in (1, 2):
        raw(expected.of(Kind.GRADIENT, phase="train"), seed)
        raw(found.of(Kind.GRADIENT, phase="train"), seed)
        raw(found.of(Kind.GRADIENT, phase="evaluate"), 7)
        raw(found.of(Kind.ACTIVATION, phase="train"), 8)
    one, other = (each.of(Kind.GRADIENT, phase="train") for each in (found, expected))
    assert raw(one, 3) == raw(other, 3)


def test_an_evaluation_done_again_is_written_in_the_same_bytes() -> None:
    found = coders()
    before = [raw(found.of(Kind.OUTPUT, phase="evaluate"), seed) for seed in (1, 2)]
    raw(found.of(Kind.OUTPUT, phase="train"), 3)
    assert [raw(found.of(Kind.OUTPUT, phase="evaluate"), seed) for seed in (1, 2)] == before


def test_what_is_forgotten_leaves_no_trace() -> None:
    found = coders()
    first = raw(found.of(Kind.OUTPUT, phase="train"), 1)
    assert raw(found.of(Kind.OUTPUT, phase="train"), 1) != first
    found.forget()
    assert raw(found.of(Kind.OUTPUT, phase="train"), 1) == first


def batches(step: int) -> list[Batch]:
    model = tiny_model("bert")
    return [
        batch_of(tiny_batch(model, lengths=(9, 4 + step % 3, 6), width=9, seed=100 * step + i))
        for i in range(2)
    ]


def allowing(folder: Path) -> Path:
    """The policy of a compute party that takes these codecs."""
    folder.mkdir(exist_ok=True)
    text = (POLICIES / "compute.toml").read_text(encoding="utf-8")
    path = folder / "compute.toml"
    rules = text.replace("codecs = [", f'linkable = true\ncodecs = ["{CODEC}", "delta-*", ')
    path.write_text(rules, encoding="utf-8")
    return path


def compute(folder: Path) -> Party:
    return compute_party(folder, policy=str(allowing(folder)))


def made(*, every: int = EVERY) -> TrustedRun:
    model = tiny_model("bert", dropout=0.1)
    return trusted_run(model, cut=CUT, total=TOTAL, codec=CODEC, every=every)


def undisturbed(folder: Path, *, every: int = EVERY) -> list[float]:
    return run_in_memory(
        folder,
        made(every=every),
        steps=batches,
        policy="research.toml",
        compute_policy=str(allowing(folder)),
    ).losses


class Killed(Exception):
    """What stands for a kill -9 in the middle of a step."""


@pytest.mark.parametrize("step", [1, 4, 5])
def test_a_killed_trusted_party_goes_on_with_the_same_numbers(tmp_path: Path, step: int) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    ours, theirs = pair()
    thread = ComputeThread(compute(tmp_path), theirs)

    def killing(now: int) -> Sequence[Batch]:
        if now == step:
            raise Killed
        return batches(now)

    party = trusted_party(tmp_path, policy="research.toml")
    engine = trusted_engine(made(), party, ours)
    with pytest.raises(Killed):
        engine.train(killing)
    party.log.close()
    party = trusted_party(tmp_path, policy="research.toml")
    engine = trusted_engine(made(), party, ours.restart())
    engine.train(batches)
    engine.finish()
    thread.join(20)
    assert thread.error is None
    assert engine.losses == expected


@pytest.mark.parametrize("step", [0, 3, 6])
def test_a_killed_compute_party_costs_only_time(tmp_path: Path, step: int) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    ours, theirs = pair()
    killing = Killing(batches, step, theirs, lambda: compute(tmp_path))
    engine = trusted_engine(made(), trusted_party(tmp_path, policy="research.toml"), ours)
    engine.train(killing)
    engine.finish()
    assert killing.times == 1
    assert engine.losses == expected


def test_checkpoints_decide_the_numbers_so_the_memory_is_in_use(tmp_path: Path) -> None:
    assert undisturbed(tmp_path / "2") != undisturbed(tmp_path / "4", every=4)


def test_an_evaluation_gives_the_same_logits_twice(tmp_path: Path) -> None:
    run = trusted_run(tiny_model("bert"), cut=CUT, total=4, every=2, codec=CODEC)
    ours, theirs = pair()
    thread = ComputeThread(compute(tmp_path), theirs)
    engine = trusted_engine(run, trusted_party(tmp_path, policy="research.toml"), ours)
    held_out = [batches(step)[0] for step in range(3)]
    engine.train(batches)
    first, second = (engine.evaluate(held_out) for _ in range(2))
    alone = engine.evaluate(held_out[2:])
    engine.finish()
    thread.join(20)
    assert thread.error is None
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one["logits"], other["logits"])
    assert torch.equal(alone[0]["logits"], first[2]["logits"])


# Six examples in three epochs of two steps of one micro-batch, of one length each.
EPOCHS, LENGTHS = 3, (9, 4, 7, 5, 9, 6)


def epochs(step: int) -> list[Batch]:
    """The same examples in each epoch, in another order."""
    order = epoch_order(6, seed=0, epoch=step // 2)
    chosen = order[3 * (step % 2) :][:3]
    pieces = [
        tiny_batch(tiny_model("bert"), lengths=(LENGTHS[i],), width=9, seed=i) for i in chosen
    ]
    batch = batch_of(pieces[0])
    whole = replace(
        batch,
        inputs={n: torch.cat([p.inputs[n] for p in pieces]) for n in batch.inputs},
        labels={n: torch.cat([p.labels[n] for p in pieces]) for n in batch.labels},
        lengths=tuple(LENGTHS[i] for i in chosen),
        items=3,
        samples=chosen,
    )
    return [whole]


def linking(*, cache_bytes: int = 2**20, every: int = 2) -> TrustedRun:
    """Nothing trains before the upper cut, so rows come again as they were."""
    run = trusted_run(
        tiny_model("bert"),
        cut=CUT,
        total=2 * EPOCHS,
        mode="features",
        train_bottom=False,
        every=every,
    )
    codecs = CodecSpec("delta-int4+zstd", "delta-int4", "int8", "int8")
    offer = msgspec.structs.replace(run.offer, codecs=codecs)
    return replace(run, offer=offer, cache_bytes=cache_bytes, linking=b"s" * 32)


@dataclass
class Tap(Around):
    """The compute party's end of a channel, and the frames of steps both ways."""

    frames: list[Frame] = field(default_factory=list)

    def receive(self, *, timeout_s: float) -> Frame:
        frame = self.inner.receive(timeout_s=timeout_s)
        self.frames.append(frame)
        return frame

    def send(self, released: Released, *, deadline_s: float) -> None:
        self.frames.append(frames.decode(released.raw))
        self.inner.send(released, deadline_s=deadline_s)

    def parts(self, kind: Kind) -> list[dict[str, Part]]:
        found = [tensors.decode(f.payload) for f in self.frames if f.kind is kind]
        return [{part.name: part for part in parts} for parts in found]


def linked(folder: Path, run: TrustedRun) -> tuple[TrustedEngine, Tap]:
    """A whole run, and what crossed the link."""
    ours, theirs = pair()
    tap = Tap(theirs)
    thread = ComputeThread(compute(folder), tap)
    engine = trusted_engine(run, trusted_party(folder, policy="research.toml"), ours)
    engine.train(epochs)
    engine.finish()
    engine.end(None)
    thread.join(20)
    assert thread.error is None
    return engine, tap


def test_from_the_second_epoch_on_changes_travel_under_the_same_names(tmp_path: Path) -> None:
    engine, tap = linked(tmp_path, linking())
    names = [bytes(parts[SAMPLES].data) for parts in tap.parts(Kind.ACTIVATION)]
    seen = [{name[i : i + 8] for i in range(0, 24, 8)} for name in names]
    assert seen[0] | seen[1] == seen[2] | seen[3] == seen[4] | seen[5]
    assert len(seen[0] | seen[1]) == 6
    for step, parts in enumerate(tap.parts(Kind.OUTPUT)):
        assert SAMPLES not in parts
        rows = sum(epochs(step)[0].lengths)
        counts = (parts["newx"].shape[0], parts["changex"].shape[0])
        assert counts == ((rows, 0) if step < 2 else (0, rows))
    assert not list(tmp_path.rglob("kept-*"))
    again, _ = linked(tmp_path / "again", linking())
    assert again.losses == engine.losses


def test_with_changes_a_run_comes_nearer_to_the_one_without_a_codec(tmp_path: Path) -> None:
    engine, _ = linked(tmp_path / "delta", linking())
    plain = linking()
    offer = msgspec.structs.replace(plain.offer, codecs=CodecSpec(*["identity"] * 4))
    exact, _ = linked(tmp_path / "exact", replace(plain, offer=offer))
    assert engine.losses == pytest.approx(exact.losses, rel=0.01)
    assert engine.losses != exact.losses


def test_samples_that_find_no_room_travel_whole_each_time(tmp_path: Path) -> None:
    _, tap = linked(tmp_path, linking(cache_bytes=8_000))
    nobody = [bytes(p[SAMPLES].data).count(NOBODY) for p in tap.parts(Kind.ACTIVATION)]
    changed = [p["changex"].shape[0] for p in tap.parts(Kind.OUTPUT)]
    assert 0 < sum(nobody) < 18
    assert sum(changed[:2]) == 0
    assert 0 < sum(changed[2:]) < sum(LENGTHS) * 2


def test_a_killed_party_begins_with_nothing_kept_and_comes_to_the_end(tmp_path: Path) -> None:
    ours, theirs = pair()
    peer = compute(tmp_path)
    ComputeThread(peer, theirs)
    tap = Tap(theirs)

    def killing(now: int) -> Sequence[Batch]:
        if now == 5 and not tap.frames:
            peer.log.close()
            tap.inner = theirs.restart()
            ComputeThread(compute(tmp_path), tap)
        return epochs(now)

    engine = trusted_engine(linking(), trusted_party(tmp_path, policy="research.toml"), ours)
    engine.train(killing)
    engine.finish()
    assert len(engine.losses) == 6
    first = tap.parts(Kind.OUTPUT)[0]
    assert first["changex"].shape[0] == 0


def test_evaluations_of_such_a_run_name_nobody_and_are_the_same_twice(tmp_path: Path) -> None:
    ours, theirs = pair()
    tap = Tap(theirs)
    thread = ComputeThread(compute(tmp_path), tap)
    engine = trusted_engine(linking(), trusted_party(tmp_path, policy="research.toml"), ours)
    engine.train(epochs)
    tap.frames.clear()
    first, second = (engine.evaluate(epochs(0)) for _ in range(2))
    engine.finish()
    thread.join(20)
    assert thread.error is None
    assert torch.equal(first[0]["logits"], second[0]["logits"])
    assert [set(p) for p in tap.parts(Kind.ACTIVATION)] == [{"zstd"}] * 2


@pytest.mark.parametrize("policy", ["research.toml", "unlinkable.toml"])
def test_without_a_rule_that_allows_it_no_example_is_named(tmp_path: Path, policy: str) -> None:
    text = (POLICIES / "research.toml").read_text(encoding="utf-8")
    (tmp_path / "unlinkable.toml").write_text(
        text.replace("linkable = true", "linkable = false"), encoding="utf-8"
    )
    path = POLICIES / policy if policy == "research.toml" else tmp_path / policy
    ours, theirs = pair()
    tap = Tap(theirs)
    ComputeThread(compute(tmp_path), tap)
    engine = trusted_engine(linking(), trusted_party(tmp_path, policy=str(path)), ours)
    refused = [
        refusal.rule
        for verdict in foresee(load_policy(path), plan_of_offer(engine.run.offer))
        for refusal in verdict.refusals
    ]
    if policy == "research.toml":
        engine.train(epochs)
        assert refused == []
        return
    with pytest.raises(RefusedError) as caught:
        engine.train(epochs)
    assert caught.value.rule == "activation.linkable"
    assert refused == ["activation.linkable"]
    assert tap.parts(Kind.ACTIVATION) == []


def test_a_job_in_changes_runs_from_its_files(tmp_path: Path) -> None:
    changes: dict[str, dict[str, object]] = {
        "codec": {"activation": "delta-int4", "output": "delta-int4+zstd", "cache_mb": 1},
        "schedule": {"epochs": 3, "steps": None},
    }
    found = prepare(load_job(make_job(tmp_path / "job", changes=changes)))
    result = run_in_memory(
        tmp_path / "run",
        found.run,
        steps=found.data.steps,
        policy="research.toml",
        compute_policy=str(allowing(tmp_path / "run")),
    )
    sent = [
        record
        for record in records(result.trusted.log.folder)
        if isinstance(record, Payload) and record.kind is Kind.ACTIVATION
    ]
    per_epoch = found.data.steps.per_epoch
    assert len(sent) > 2 * per_epoch
    assert all(record.parts[0].name == SAMPLES for record in sent)
    assert sent[-1].wire_bytes < sent[0].wire_bytes


def test_each_stage_has_its_codecs_from_its_first_step_on() -> None:
    later = dict.fromkeys(KINDS, "int4")
    made = Coders(dict.fromkeys(KINDS, "int8"), {}, kept=Kept(Path("nowhere")), stages=[(3, later)])
    for phase in ("train", "evaluate"):
        found = [made.of(Kind.ACTIVATION, phase=phase, step=step).name for step in (0, 2, 3, 9)]
        assert found == ["int8", "int8", "int4", "int4"]


STAGES = (CodecStage(3, CodecSpec("int4", "fp16", "int8", "identity")),)


def staged(**more: object) -> TrustedRun:
    run = trusted_run(tiny_model("bert"), cut=CUT, total=TOTAL, codec="int8", every=EVERY)
    detail = msgspec.structs.replace(run.offer.detail, stages=STAGES)
    return replace(run, offer=msgspec.structs.replace(run.offer, detail=detail))


def few(step: int) -> list[Batch]:
    return [batch_of(tiny_batch(tiny_model("bert"), seed=step))]


def test_both_parties_change_codecs_at_the_same_step_and_the_log_says_so(tmp_path: Path) -> None:
    result = run_in_memory(tmp_path, staged(), steps=few)
    for party in ("clinic", "gpuhost"):
        logged = records(tmp_path / party / "audit")
        sent = [r for r in logged if isinstance(r, Payload) and r.codec and r.direction == "out"]
        found = {(r.kind, r.step >= 3): r.codec for r in sent if r.kind in set(Kind)}
        wanted = {
            (kind, late): getattr(STAGES[0].codecs, kind.value) if late else "int8"
            for kind in (
                (Kind.ACTIVATION, Kind.GRADIENT)
                if party == "clinic"
                else (Kind.OUTPUT, Kind.INPUT_GRADIENT)
            )
            for late in (False, True)
        }
        assert found == wanted
        opened = [r for r in logged if isinstance(r, RunOpen)]
        assert opened[0].codec_stages == {"3": msgspec.structs.asdict(STAGES[0].codecs)}
    assert len(result.losses) == TOTAL


def test_stages_of_a_peer_have_to_ascend() -> None:
    offer = staged().offer
    detail = msgspec.structs.replace(offer.detail, stages=(*STAGES, *STAGES))
    with pytest.raises(WireError, match="stages of codecs begin at steps"):
        Coders.of_offer(
            msgspec.structs.replace(offer, detail=detail), {}, kept=Kept(Path("nowhere"))
        )
