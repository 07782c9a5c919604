"""A run on another device is the same run; in bf16 it is nearly so, and can be repeated to the bit.

The other device is tests/elsewhere.py's, which every machine has. Tests marked `gpu` take a real one.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import PreTrainedModel

from splitlearn.channel import pair
from splitlearn.engine.job.exposure import preflight
from splitlearn.engine.job.prepare import prepare
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.device import CPU, Device, find_device
from splitlearn.engine.state.seeds import seeded
from splitlearn.engine.trusted.generation import Sampling
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import ManifestError
from splitlearn.leakage import Budget
from splitlearn.manifest import load_job
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.stage import factor, remote_stage, split
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import LoraSpec, OptimiserSpec
from tests import elsewhere
from tests.crossed import crossed_model
from tests.elsewhere import ELSEWHERE
from tests.engine.trusted.test_generation import DRAWN, PROMPT, TWO, offered
from tests.engine.trusted.test_remote import connected, own_loop
from tests.exactness.test_engine import batches
from tests.exactness.test_side import side_run
from tests.jobs import make_job, public_lines
from tests.rig import (
    ComputeThread,
    Result,
    compute_party,
    run_in_memory,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import DECODERS, ENCODERS, WRITERS, tiny_model

CUT = Cut(1, 3)
THERE = Device(ELSEWHERE)
HALF = Device(bf16=True)
GPU = Device(torch.device("cuda", 0))
SGD = OptimiserSpec("sgd", 0.1, 0.0, 0.9, 0.999, 1e-8)


def trained(
    folder: Path, make: Callable[[], TrustedRun], *, ours: Device = THERE, theirs: Device = THERE
) -> Result:
    run = replace(make(), device=ours)
    if ours is THERE:
        elsewhere.move(run.local)
    return run_in_memory(folder, run, steps=lambda step: batches(run.local, step), device=theirs)


def assert_alike(one: Result, two: Result, *, atol: float = 1e-6) -> None:
    """But for a last bit where a product depends on how memory lies."""
    assert one.losses == pytest.approx(two.losses, rel=atol)
    assert one.trunk.keys() == two.trunk.keys()
    ours, theirs = dict(one.local.named_parameters()), dict(two.local.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in {**one.trunk, **ours}.items():
        other = two.trunk[name] if name in two.trunk else theirs[name]
        assert_close(other.cpu(), tensor.cpu(), rtol=0, atol=atol, msg=name)


def family_of(name: str) -> PreTrainedModel:
    """With dropout, so that a seed that was left behind shows."""
    return tiny_model(name, dropout=0.1, **({"use_cache": False} if name in WRITERS else {}))


def cut_run(
    model: PreTrainedModel, *, cut: Cut = CUT, total: int = 2, **more: object
) -> TrustedRun:
    return trusted_run(model, cut=cut, total=total, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS, *WRITERS])
def test_every_familys_parts_stay_elsewhere_forward_and_back(family: str) -> None:
    losses = []
    for device in (CPU, THERE):
        model = family_of(family)
        batch = batches(model, 0)[0]
        local, trunk = split(factor(model, cut=CUT, bases={}), cut=CUT)
        if device is THERE:
            elsewhere.move(local)
        trunk.to(device.at)
        remote_stage(local).exchange = partial(trunk, lengths=batch.lengths)
        with seeded(0, step=0, micro_batch=0, stage="trunk"):
            loss = local(**device.take_all({**batch.inputs, **batch.labels}))["loss"]
        loss.backward()
        weights = [*local.parameters(), *(p for p in trunk.parameters() if p.requires_grad)]
        assert {p.grad.device for p in weights if p.grad is not None} == {device.at}
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("family", ["distilbert", "gpt2", "t5"])
def test_both_parties_elsewhere_compute_what_they_do_here(tmp_path: Path, family: str) -> None:
    def make() -> TrustedRun:
        return cut_run(family_of(family), total=1)

    here = trained(tmp_path / "here", make, ours=CPU, theirs=CPU)
    there = trained(tmp_path / "there", make)
    assert {p.device for p in there.local.parameters()} == {ELSEWHERE}
    assert_alike(here, there)


def lora_run() -> TrustedRun:
    targets = ("attention.self.query", "attention.self.value")
    spec = LoraSpec(rank=4, alpha=8.0, dropout=0.1, targets=targets, seed=5)
    model = tiny_model("bert")
    return trusted_run(model, cut=CUT, total=2, mode="lora", lora=spec, where="all")


RUNS: dict[str, Callable[[], TrustedRun]] = {
    "side": lambda: side_run(total=2),
    "outputs kept": lambda: side_run(total=2, repeats=True),
    "adapters": lora_run,
    "narrow": lambda: cut_run(tiny_model("bert"), cut=Cut(1, 3, upper=Bottleneck("sft", 4))),
    "crossed": lambda: cut_run(crossed_model("bart", dropout=0.1, use_cache=False)),
    "clipped": lambda: cut_run(tiny_model("bert"), clip_norm=0.1),
    "stale": lambda: cut_run(tiny_model("bert"), staleness=1, every=9),
    "whole rows": lambda: cut_run(tiny_model("bert", task="question-answering"), optimiser=SGD),
    "coded": lambda: cut_run(tiny_model("bert"), codec="int8"),
    "plain": lambda: cut_run(tiny_model("bert", dropout=0.1)),
    "checkpoints": lambda: cut_run(tiny_model("bert", dropout=0.1), every=1),
}


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("plain", "checkpoints")])
def test_every_way_to_train_goes_elsewhere(tmp_path: Path, name: str) -> None:
    run = RUNS[name]
    here = trained(tmp_path / "here", run, ours=CPU, theirs=CPU)
    assert_alike(here, trained(tmp_path / "there", run))


@pytest.mark.parametrize(("ours", "theirs"), [(CPU, THERE), (THERE, CPU)], ids=["theirs", "ours"])
def test_one_party_may_be_elsewhere_and_the_other_not(
    tmp_path: Path, ours: Device, theirs: Device
) -> None:
    run = RUNS["plain"]
    here = trained(tmp_path / "here", run, ours=CPU, theirs=CPU)
    assert_alike(here, trained(tmp_path / "there", run, ours=ours, theirs=theirs))


def test_noise_is_added_where_the_logits_are(tmp_path: Path) -> None:
    def noisy() -> TrustedRun:
        noise = LabelNoise(clip=1.0, noise=1e-9, steps_per_epoch=4)
        return replace(cut_run(tiny_model("bert"), optimiser=SGD), noise=noise)

    here = trained(tmp_path / "here", noisy, ours=CPU, theirs=CPU)
    assert_alike(here, trained(tmp_path / "there", noisy), atol=1e-4)


def test_a_run_begun_elsewhere_goes_on_here_from_checkpoints_on_no_device(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", RUNS["checkpoints"], ours=CPU, theirs=CPU)
    assert_alike(whole, resumed(tmp_path / "resumed", first=THERE, then=CPU))


def resumed(folder: Path, *, first: Device, then: Device) -> Result:
    """To the end on one device; the last step once more, by new processes, on another."""
    trained(folder, RUNS["checkpoints"], ours=first, theirs=first)
    for party in ("clinic", "gpuhost"):
        Checkpoints(folder / party / "checkpoints").drop_after(1)
    result = trained(folder, RUNS["checkpoints"], ours=then, theirs=then)
    assert len(result.engine.step_s) == 1
    return result


@pytest.mark.parametrize("family", ["mistral", "bart"])
def test_texts_are_gone_on_with_elsewhere(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "tensor", elsewhere.tensor)
    monkeypatch.setattr(torch, "Generator", elsewhere.generator)
    said = [written(tmp_path / d.at.type, tiny_model(family), d) for d in (CPU, THERE)]
    for one, other in zip(*said, strict=True):
        assert other.device.type == "cpu"
        assert torch.equal(one, other)


def written(folder: Path, model: PreTrainedModel, device: Device) -> list[Tensor]:
    run = replace(cut_run(model, total=1, mode="features", train_bottom=False), device=device)
    if device is THERE:
        elsewhere.move(model)
    parties = trusted_party(folder, policy="research.toml"), compute_party(folder)
    found: list[Tensor] = []
    for purpose in ("train", "generate"):
        ours, theirs = pair()
        thread = ComputeThread(parties[1], theirs, device=device)
        engine = trusted_engine(offered(run, purpose), parties[0], ours)
        if purpose == "train":
            engine.train(lambda step: batches(model, step, micro=1))
        else:
            found += engine.generate([PROMPT], sampling=DRAWN)
            found += engine.generate([TWO], sampling=Sampling(tokens=3))
        engine.finish()
        engine.end(None)
        thread.join(20)
        assert thread.error is None
    return found


def test_what_is_scored_comes_home(tmp_path: Path) -> None:
    model = tiny_model("bert", task="question-answering")
    run = replace(cut_run(model, total=1), device=THERE)
    elsewhere.move(model)
    ours, theirs = pair()
    ComputeThread(compute_party(tmp_path), theirs, device=THERE)
    engine = trusted_engine(run, trusted_party(tmp_path), ours)
    engine.train(lambda step: batches(model, step))
    (found, _) = engine.evaluate(batches(model, 3))
    engine.finish()
    assert {name: t.device.type for name, t in found.items()} == {
        "start_logits": "cpu",
        "end_logits": "cpu",
    }


def test_somebodys_own_loop_elsewhere_goes_through_a_remote_trunk(tmp_path: Path) -> None:
    losses = []
    for device in (CPU, THERE):
        run = cut_run(tiny_model("bert", dropout=0.0))
        if device is THERE:
            elsewhere.move(run.local)

        def steps(step: int, run: TrustedRun = run, device: Device = device) -> list[Batch]:
            return [
                replace(b, inputs=device.take_all(b.inputs), labels=device.take_all(b.labels))
                for b in batches(run.local, step)
            ]

        with connected(tmp_path / device.at.type, run) as room:
            room.trunk.open()
            losses.append(own_loop(run, steps, last=2))
            room.trunk.close()
            room.trunk.end()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_leakage_is_measured_elsewhere_as_it_is_here(tmp_path: Path) -> None:
    made = prepare(load_job(make_job(tmp_path)))
    lines, budget = public_lines(60), Budget.quick()
    here = preflight(made, lines, max_length=32, budget=budget)
    elsewhere.move(made.model)
    made = replace(made, run=replace(made.run, device=THERE))
    there = preflight(made, lines, max_length=32, budget=budget)
    assert there.text.best.top1 == pytest.approx(here.text.best.top1, abs=0.01)
    assert here.labels is not None
    assert there.labels is not None
    assert there.labels.best.auc == pytest.approx(here.labels.best.auc, abs=0.01)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_party_in_bf16_trains_nearly_as_in_float32(tmp_path: Path, family: str) -> None:
    def run() -> TrustedRun:
        return cut_run(family_of(family))

    exact = trained(tmp_path / "exact", run, ours=CPU, theirs=CPU)
    for name, ours, theirs in (("theirs", CPU, HALF), ("ours", HALF, CPU), ("both", HALF, HALF)):
        half = trained(tmp_path / name, run, ours=ours, theirs=theirs)
        assert half.losses != exact.losses
        assert half.losses == pytest.approx(exact.losses, rel=0.02)
        weights = [*half.local.parameters(), *half.trunk.values()]
        assert {t.dtype for t in weights} == {torch.float32}


def test_what_crosses_the_cut_of_a_party_in_bf16_is_of_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from splitlearn.engine.conversation import talk

    seen: list[Tensor] = []
    release = talk.Gate.release

    def watched(self: object, *args: object, **kwargs: object) -> object:
        if isinstance(tensor := kwargs.get("tensor"), Tensor):
            seen.append(tensor)
        return release(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(talk.Gate, "release", watched)
    for name in ("plain", "crossed"):
        trained(tmp_path / name, RUNS[name], ours=HALF, theirs=HALF)
    assert len(seen) == 2 * 4 * 2 * 2  # runs, kinds, steps, micro-batches
    assert {t.dtype for t in seen} == {torch.float32}


def test_a_run_in_bf16_that_is_resumed_is_the_undisturbed_one_to_the_bit(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", RUNS["checkpoints"], ours=HALF, theirs=HALF)
    assert_alike(whole, resumed(tmp_path / "resumed", first=HALF, then=HALF), atol=0)


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device("cpu", precision="float32", file="job.toml") == CPU
    assert find_device("cpu", precision="bf16", file="job.toml") == HALF
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ManifestError, match=r'^job.toml: run.device is "cuda", and .* finds none'):
        find_device("cuda", precision="float32", file="job.toml")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ManifestError, match=r'"cuda:1", and .* finds 1 such here'):
        find_device("cuda:1", precision="float32", file="job.toml")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old Card")
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    with pytest.raises(ManifestError, match=r'run.precision is "bf16", and Old Card computes no'):
        find_device("cuda", precision="bf16", file="job.toml")
    found = find_device("cuda", precision="float32", file="job.toml")
    assert found == Device(torch.device("cuda", 0))


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_a_real_device_trains_as_the_cpu_does(tmp_path: Path, family: str) -> None:
    def run() -> TrustedRun:
        return cut_run(tiny_model(family), optimiser=SGD)

    here = trained(tmp_path / "here", run, ours=CPU, theirs=CPU)
    assert_alike(here, trained(tmp_path / "there", run, ours=GPU, theirs=GPU), atol=1e-3)
    assert_alike(here, trained(tmp_path / "theirs", run, ours=CPU, theirs=GPU), atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNS)
def test_every_way_to_train_runs_on_a_real_device_in_bf16(tmp_path: Path, name: str) -> None:
    half = find_device("cuda", precision="bf16", file="job.toml")
    here = trained(tmp_path / "here", RUNS[name], ours=CPU, theirs=CPU)
    there = trained(tmp_path / "there", RUNS[name], ours=half, theirs=half)
    assert there.losses == pytest.approx(here.losses, rel=0.1)


@pytest.mark.gpu
def test_a_run_on_a_real_device_is_resumed(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", RUNS["checkpoints"], ours=GPU, theirs=GPU)
    assert_alike(whole, resumed(tmp_path / "resumed", first=GPU, then=GPU), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "mistral", "bart"])
def test_texts_are_gone_on_with_on_a_real_device(tmp_path: Path, family: str) -> None:
    one, two = (written(tmp_path / name, tiny_model(family), GPU) for name in ("one", "two"))
    assert all(map(torch.equal, one, two))  # drawn from one seed
    (_, here), (_, there) = written(tmp_path / "here", tiny_model(family), CPU), one
    assert torch.equal(here, there)  # the likeliest
