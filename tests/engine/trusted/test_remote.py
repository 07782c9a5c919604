"""Somebody's own loop over a remote trunk, against the unsplit loop, to the bit."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from splitlearn.channel import pair
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.engine.plain import evaluate_plain
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.trusted.line import Hop, Peer
from splitlearn.engine.trusted.remote import RemoteTrunk
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import ManifestError, SessionError
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import Mode, freeze, set_training
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Detail
from tests.crossed import crossed_model
from tests.exactness.test_engine import batches
from tests.rig import ComputeThread, Party, compute_party, train_unsplit, trusted_party, trusted_run
from tests.tiny import tiny_model

CUT, STEPS, MICRO = Cut(1, 3), 10, 2


@dataclass
class Room:
    trunk: RemoteTrunk
    party: Party
    compute: ComputeThread


@contextmanager
def connected(tmp_path: Path, run: TrustedRun, *, micro: int = MICRO) -> Iterator[Room]:
    party, other = trusted_party(tmp_path), compute_party(tmp_path)
    ours, theirs = pair()
    thread = ComputeThread(other, theirs, deadline_s=10)
    trunk = RemoteTrunk(run, Peer(ours, party.gate), folder=tmp_path, micro_batches=micro)
    yield Room(trunk, party, thread)
    ours.close()
    thread.join(20)
    for each in (party, other):
        each.log.close()


def own_loop(
    run: TrustedRun, steps: Callable[[int], list[Batch]], *, first: int = 0, last: int = STEPS
) -> list[float]:
    """As somebody would write it who knows torch and nothing of this library's engine."""
    stepper = build_stepper(
        run.local.parameters(), optimiser=run.offer.optimiser, schedule=run.offer.schedule
    )
    set_training(run.local, training=True)
    losses = []
    for step in range(first, last):
        made = steps(step)
        total, mean = sum(b.items for b in made), torch.zeros(())
        for batch in made:
            loss = run.local(**batch.inputs, **batch.labels)["loss"] * (batch.items / total)
            loss.backward()
            mean += loss.detach()
        stepper.step()
        losses.append(mean.item())
    return losses


@pytest.mark.parametrize(
    ("mode", "train_bottom"),
    [("full", True), ("full", False), ("features", False)],
)
def test_ten_steps_of_an_own_loop_are_those_of_the_unsplit_model(
    tmp_path: Path, mode: Mode, train_bottom: bool
) -> None:
    model = tiny_model("bert")
    whole = copy.deepcopy(model)
    freeze(whole, cut=CUT, mode=mode, train_bottom=train_bottom)
    run = trusted_run(model, cut=CUT, total=STEPS, mode=mode, train_bottom=train_bottom)
    steps: Callable[[int], list[Batch]] = lambda step: batches(model, step, micro=MICRO)  # noqa: E731
    expected = train_unsplit(whole, run, steps=steps)
    held_out = batches(model, 77)
    scores = evaluate_plain(whole, batches=held_out, observe=lambda _: None)
    with connected(tmp_path, run) as room:
        room.trunk.open()
        assert own_loop(run, steps) == expected
        assert room.trunk.step == STEPS
        run.local.eval()
        with torch.no_grad():
            for batch, wanted in zip(held_out, scores, strict=True):
                assert torch.equal(run.local(**batch.inputs)["logits"], wanted["logits"])
        trunk = room.trunk.close(fetch=True)
        room.trunk.end()
    assert room.compute.error is None
    assert (trunk == {}) is (mode == "features")
    for name, tensor in trunk.items():
        same = whole.state_dict()[f"bert.encoder.layer.{name.removeprefix('layers.')}"]
        assert torch.equal(tensor, same), name


def test_a_peer_goes_on_from_its_checkpoint_and_says_if_it_has_none(tmp_path: Path) -> None:
    def run_anew() -> TrustedRun:
        return trusted_run(
            tiny_model("bert"), cut=CUT, total=STEPS, train_bottom=False, mode="full"
        )

    model, kept = tiny_model("bert"), dict[str, Tensor]()
    steps: Callable[[int], list[Batch]] = lambda step: batches(model, step, micro=MICRO)  # noqa: E731
    run = run_anew()
    with connected(tmp_path, run) as room:
        room.trunk.open()
        own_loop(run, steps, last=4)
        room.trunk.save()
        kept.update({n: t.clone() for n, t in run.local.state_dict().items()})
        own_loop(run, steps, first=4, last=5)
        room.trunk.end()
    run = run_anew()
    run.local.load_state_dict(kept)
    with connected(tmp_path, run) as room:
        room.trunk.open(step=4)
        assert room.trunk.step == 4
        own_loop(run, steps, first=4, last=6)
        room.trunk.close()
        room.trunk.end()
    with connected(tmp_path, run_anew()) as room:
        with pytest.raises(SessionError, match=r"holds checkpoints \(0, 4\) of this run and not 9"):
            room.trunk.open(step=9)
        room.trunk.end()


def test_a_batch_that_the_gate_could_not_judge_is_refused(tmp_path: Path) -> None:
    run = trusted_run(tiny_model("bert"), cut=CUT, total=STEPS)
    with connected(tmp_path, run) as room:
        room.trunk.open()
        batch = batches(tiny_model("bert"), 0)[0]
        with pytest.raises(ManifestError, match="called by keyword"):
            run.local(batch.inputs["input_ids"])
        flipped = {n: t.flip(1) for n, t in batch.inputs.items()}
        with pytest.raises(ManifestError, match="padded on the right only"):
            run.local(**flipped)
        room.trunk.end()


def test_what_needs_the_engines_own_loop_is_refused(tmp_path: Path) -> None:
    run = trusted_run(tiny_model("bert"), cut=CUT, total=STEPS)
    offer, hop = run.offer, run.hops[0]
    assert isinstance(hop, Hop)
    stale = msgspec.structs.replace(
        offer, schedule=msgspec.structs.replace(offer.schedule, staleness=1)
    )
    keeping = msgspec.structs.replace(offer, detail=Detail(repeats=True))
    crossed = trusted_run(crossed_model("bart"), cut=CUT, total=STEPS).offer
    noise = LabelNoise(clip=1.0, noise=1.0, steps_per_epoch=4)
    for other, why in (
        (replace(run, further=(hop,)), "several compute parties"),
        (replace(run, offer=stale), "staleness"),
        (replace(run, offer=keeping), "keeps outputs"),
        (replace(run, noise=noise), "gradient_noise"),
        (replace(run, clip_norm=1.0), "clip_norm"),
        (replace(run, offer=crossed), "a decoder.s layers"),
    ):
        with pytest.raises(ManifestError, match=why):
            RemoteTrunk(other, Peer(pair()[0], trusted_party(tmp_path / why).gate), folder=tmp_path)
