"""Noise on what labels decide: what a step's gradients become, what is logged, what is left to read."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Dp, Payload, decode
from splitlearn.channel import MemoryChannel, pair
from splitlearn.channel.base import Released
from splitlearn.engine.payloads.noise import LabelNoise, gaussian
from splitlearn.leakage.labels import SeenGradients, spectral_attack
from splitlearn.policy.accounting import releases_of
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch
from splitlearn.wire import frames, tensors
from tests.rig import (
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

CUT = Cut(1, 3)
# As good as none.
NO_NOISE = LabelNoise(clip=10.0, noise=1e-12, steps_per_epoch=2)


def by_logits(noise: LabelNoise, logits: Tensor, labels: Tensor, *, items: int) -> Tensor:
    """Each example's gradient of its own loss."""
    logits = logits.clone().requires_grad_()
    flat = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    noise.backward(flat / items, logits=logits, labels=labels, items=items)
    assert logits.grad is not None
    return logits.grad * items


def test_clipping_shortens_what_is_too_long_and_nothing_else() -> None:
    logits = torch.tensor([[4.0, -4.0], [-4.0, 4.0], [0.1, 0.0]])
    labels = torch.tensor([0, 0, 1])
    noise = LabelNoise(clip=0.5, noise=1e-12, steps_per_epoch=1)
    whole = torch.softmax(logits, 1) - nn.functional.one_hot(labels, 2)
    found = by_logits(noise, logits, labels, items=7)
    assert whole.norm(dim=1).tolist() == pytest.approx([5e-4, 1.4137, 0.7424], abs=1e-3)
    assert found.norm(dim=1).tolist() == pytest.approx([5e-4, 0.5, 0.5], abs=1e-3)
    assert torch.allclose(found[0], whole[0], atol=1e-6)
    assert torch.allclose(found[1:] / 0.5, nn.functional.normalize(whole[1:]), atol=1e-6)


def test_noise_is_as_wide_as_was_asked_for_whatever_the_step_divides_by() -> None:
    logits, labels = torch.zeros(4000, 3), torch.zeros(4000, dtype=torch.int64)
    noise = LabelNoise(clip=0.5, noise=4.0, steps_per_epoch=1)
    for items in (1, 4000):
        found = by_logits(noise, logits, labels, items=items)
        assert found.std(dim=0).tolist() == pytest.approx([2.0] * 3, rel=0.05)


def test_all_tokens_of_an_example_are_clipped_together_and_those_without_a_label_get_no_noise() -> (
    None
):
    logits = torch.zeros(5, 6, 3)
    labels = torch.ones(5, 6, dtype=torch.int64)
    labels[:, 4:] = -100
    quiet = LabelNoise(clip=0.3, noise=1e-12, steps_per_epoch=1)
    found = by_logits(quiet, logits, labels, items=20)
    assert found.flatten(1).norm(dim=1).tolist() == pytest.approx([0.3] * 5)
    loud = by_logits(replace(quiet, noise=50.0), logits, labels, items=20)
    assert loud[:, 4:].count_nonzero() == 0
    assert loud[:, :4].count_nonzero() == 5 * 4 * 3


def test_the_numbers_are_normal_and_never_those_of_a_seed() -> None:
    torch.manual_seed(0)
    one = gaussian(100_001)
    torch.manual_seed(0)
    assert (one != gaussian(100_001)).all()
    assert one.mean() == pytest.approx(0, abs=0.02)
    assert one.std() == pytest.approx(1, abs=0.02)
    assert (one**4).mean() == pytest.approx(3, abs=0.2)
    assert (one > 1.6449).mean() == pytest.approx(0.05, abs=0.005)


def stream(step: int) -> list[Batch]:
    model = tiny_model("bert")
    return [batch_of(tiny_batch(model, seed=10 * step + i)) for i in range(2)]


def test_as_good_as_no_noise_is_as_good_as_the_run_without(tmp_path: Path) -> None:
    losses = []
    for name, noise in (("without", None), ("with", NO_NOISE)):
        run = trusted_run(tiny_model("bert"), cut=CUT, total=4)
        losses.append(run_in_memory(tmp_path / name, replace(run, noise=noise), steps=stream))
    assert losses[1].losses == pytest.approx(losses[0].losses, abs=1e-5)
    assert [r.dp for r in gradients_logged(losses[0].trusted)] == [None] * 8


def gradients_logged(party: Party) -> list[Payload]:
    records = [decode(line) for line, _ in read_lines(party.folder / "audit")]
    return [
        r
        for r in records
        if isinstance(r, Payload) and r.kind is Kind.GRADIENT and r.direction == "out"
    ]


class Killed(Exception):
    """What stands for a kill -9 in the middle of a run."""


def test_each_gradient_is_logged_with_its_noise_and_steps_done_again_are_counted(
    tmp_path: Path,
) -> None:
    noise = LabelNoise(clip=0.7, noise=3.0, steps_per_epoch=2)

    def killing(step: int) -> Sequence[Batch]:
        if step == 3:
            raise Killed
        return stream(step)

    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)
    first, channel = trusted_party(tmp_path), ours
    run = replace(trusted_run(tiny_model("bert"), cut=CUT, total=4, every=2), noise=noise)
    with pytest.raises(Killed):
        trusted_engine(run, first, channel).train(killing)
    first.log.close()
    again = trusted_party(tmp_path)
    run = replace(trusted_run(tiny_model("bert"), cut=CUT, total=4, every=2), noise=noise)
    engine = trusted_engine(run, again, ours.restart())
    engine.train(stream)
    engine.finish()
    thread.join(20)
    assert thread.error is None
    logged = gradients_logged(again)
    assert [r.step for r in logged] == [0, 0, 1, 1, 2, 2, 2, 2, 3, 3]
    expected = Dp(
        mechanism="gaussian",
        clip=0.7,
        noise=3.0,
        epoch=1,
        unit="example",
        relation="replace-labels",
    )
    assert logged[-1].dp == expected
    sent = [(r.dp.epoch, r.step, r.micro_batch) for r in logged if r.dp is not None]
    # Two epochs, and the third step twice.
    assert releases_of((e, s or 0, m or 0) for e, s, m in sent) == 3


def examples(count: int) -> Batch:
    """Random ids of 9 tokens, labels 0 and 1 that have nothing to do with them."""
    draws = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 60, (count, 9), generator=draws)
    labels = torch.randperm(count, generator=draws) % 2
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Batch(inputs=inputs, labels={"labels": labels}, lengths=(9,) * count, items=count)


def tap(channel: MemoryChannel) -> list[Released]:
    """Everything that is sent from here on."""
    kept: list[Released] = []
    send = channel.send

    def keeping(released: Released, *, deadline_s: float) -> None:
        kept.append(released)
        send(released, deadline_s=deadline_s)

    channel.send = keeping  # type: ignore[method-assign]
    return kept


def seen_by_the_peer(folder: Path, batch: Batch, noise: LabelNoise | None) -> SeenGradients:
    """The gradient rows of one step of the batch, as bytes on the link had them."""
    ours, theirs = pair()
    thread = ComputeThread(compute_party(folder), theirs)
    run = replace(trusted_run(tiny_model("bert"), cut=CUT, total=1), noise=noise)
    sent = tap(ours)
    engine = trusted_engine(run, trusted_party(folder), ours)
    engine.train(lambda _: [batch])
    engine.finish()
    thread.join(20)
    (raw,) = [released.raw for released in sent if released.kind is Kind.GRADIENT]
    (part,) = tensors.decode(frames.decode(raw).payload)
    return SeenGradients(torch.from_numpy(tensors.to_array(part).copy()), batch.lengths)


def auc_of(seen: SeenGradients, labels: Sequence[int]) -> float:
    auc = spectral_attack(seen, labels=labels, seed=0).auc
    assert auc is not None
    return auc


def test_what_a_peer_reads_off_a_run_falls_as_far_as_the_noise_allows(tmp_path: Path) -> None:
    batch = examples(240)
    labels = batch.labels["labels"].tolist()
    noises = (None, 0.5, 2.0, 8.0)
    seen = [
        seen_by_the_peer(
            tmp_path / str(noise),
            batch,
            noise and LabelNoise(clip=0.7, noise=noise, steps_per_epoch=1),
        )
        for noise in noises
    ]
    assert all(not torch.equal(one.g_ND, two.g_ND) for one, two in pairwise(seen))
    aucs = [auc_of(one, labels) for one in seen]
    assert aucs[0] > 0.95
    for noise, auc in zip(noises[1:], aucs[1:], strict=True):
        assert noise is not None
        # Two points at most 2 clip apart in normal noise: no attack on one release does better, but
        # for what 240 examples leave to luck and to the choice of view and sign.
        best = 0.5 * (1 + math.erf(math.sqrt(2) / noise / math.sqrt(2)))
        assert auc < best + 0.1
    assert aucs[1] > 0.8, "little noise hides little, and the attack shows it"
