"""Codecs that remember: apart by kind and phase, and a resumed run that is the undisturbed one."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitlearn.channel import pair
from splitlearn.codecs import Codec
from splitlearn.engine.coders import Coders
from splitlearn.engine.trusted import TrustedRun
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch
from splitlearn.wire import tensors
from tests.rig import (
    POLICIES,
    ComputeThread,
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
    return Coders(dict.fromkeys(KINDS, name), {})


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
    """The policy of a compute party that takes this codec."""
    folder.mkdir(exist_ok=True)
    text = (POLICIES / "compute.toml").read_text(encoding="utf-8")
    path = folder / "compute.toml"
    path.write_text(text.replace("codecs = [", f'codecs = ["{CODEC}", '), encoding="utf-8")
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
    peer = compute(tmp_path)
    ComputeThread(peer, theirs)
    killed: list[int] = []

    def killing(now: int) -> Sequence[Batch]:
        if now == step and not killed:
            killed.append(now)
            peer.log.close()
            ComputeThread(compute(tmp_path), theirs.restart())
        return batches(now)

    engine = trusted_engine(made(), trusted_party(tmp_path, policy="research.toml"), ours)
    engine.train(killing)
    engine.finish()
    assert killed == [step]
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
