"""What [privacy] is worth, measured: labels enter by one door only, and what passes it is what it says."""

import math
import types
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from splitlearn.channel import pair
from splitlearn.engine.payloads import noise as label_noise
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.leakage.labels import SeenGradients, clustering_attack, spectral_attack
from splitlearn.policy.accounting import keep_probability, response_epsilon
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch, batch
from splitlearn.tasks.encode import Encoded, Example
from splitlearn.tasks.randomise import randomised
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import OptimiserSpec
from tests.rig import ComputeThread, compute_party, trusted_engine, trusted_party, trusted_run
from tests.tiny import tiny_model

COUNT, LENGTH = 240, 9
# So little that every epoch is like the first.
STANDING = OptimiserSpec("sgd", 1e-9, 0.0, 0.9, 0.999, 1e-8)


def examples() -> list[Example]:
    """Random ids, and classes 0 and 1 that have nothing to do with them."""
    draws = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 60, (COUNT, LENGTH), generator=draws).tolist()
    labels = (torch.randperm(COUNT, generator=draws) % 2).tolist()
    return [
        Example(tuple(row), None, targets={"labels": label}, items=1, row=number)
        for number, (row, label) in enumerate(zip(ids, labels, strict=True))
    ]


def labels_of(made: Batch) -> list[int]:
    found: list[int] = made.labels["labels"].tolist()
    return found


def sent(
    folder: Path,
    made: Batch,
    noise: LabelNoise | None,
    *,
    steps: int,
    optimiser: OptimiserSpec | None = None,
) -> tuple[list[tuple[Kind, bytes]], dict[str, Tensor]]:
    """What a run over the real gate sent in its steps, as on the link, and the weights it came to."""
    ours, theirs = pair()
    thread = ComputeThread(compute_party(folder), theirs)
    run = trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=steps)
    offer = run.offer
    if optimiser is not None:
        offer = msgspec.structs.replace(offer, optimiser=optimiser)
    run = replace(run, offer=offer, noise=noise)
    kept: list[tuple[Kind, bytes]] = []
    send = ours.send

    def keeping(released, *, deadline_s):  # type: ignore[no-untyped-def]
        kept.append((released.kind, frames.decode(released.raw).payload))
        send(released, deadline_s=deadline_s)

    ours.send = keeping  # type: ignore[method-assign]
    engine = trusted_engine(run, trusted_party(folder), ours)
    engine.train(lambda _: [made])
    engine.finish()
    thread.join(20)
    assert thread.error is None
    told = [(kind, bytes(raw)) for kind, raw in kept if kind in {Kind.ACTIVATION, Kind.GRADIENT}]
    return told, {name: p.detach().clone() for name, p in run.local.named_parameters()}


def gradients(told: list[tuple[Kind, bytes]]) -> list[Tensor]:
    parts = [tensors.decode(raw)[0] for kind, raw in told if kind is Kind.GRADIENT]
    return [torch.from_numpy(tensors.to_array(part).copy()) for part in parts]


def seen(g_ND: Tensor) -> SeenGradients:
    return SeenGradients(g_ND, (LENGTH,) * COUNT)


@dataclass(frozen=True)
class Deaf(LabelNoise):
    """Noise that drowns everything: what passes is the same for any label, and known."""

    def backward(self, loss: Tensor, *, logits: Tensor, labels: Tensor, items: int) -> None:
        drowned = torch.linspace(-1, 1, logits.numel()).reshape(logits.shape) / items
        torch.autograd.backward(logits, drowned)


def test_labels_enter_a_run_where_the_noise_is_and_nowhere_else(tmp_path: Path) -> None:
    one = batch(examples(), pad_id=1)
    other = replace(one, labels={"labels": 1 - one.labels["labels"]})
    deaf = Deaf(clip=1.0, noise=1.0, steps_per_epoch=1)
    first, first_weights = sent(tmp_path / "1", one, deaf, steps=4)
    second, second_weights = sent(tmp_path / "2", other, deaf, steps=4)
    assert len(first) == 8
    assert first == second
    assert all(torch.equal(second_weights[name], p) for name, p in first_weights.items())
    # And without it they do tell.
    assert (
        sent(tmp_path / "3", one, None, steps=2)[0] != sent(tmp_path / "4", other, None, steps=2)[0]
    )


def test_many_releases_together_tell_as_much_as_the_accounting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same draws each time: now and then an attack finds another direction than the labels'.
    drawn = types.SimpleNamespace(token_bytes=np.random.default_rng(1).bytes)
    monkeypatch.setattr(label_noise, "secrets", drawn)
    made = batch(examples(), pad_id=1)
    noise, epochs = 3.0, 9
    protected = LabelNoise(clip=0.7, noise=noise, steps_per_epoch=1)
    told, _ = sent(tmp_path, made, protected, steps=epochs, optimiser=STANDING)
    each = gradients(told)
    assert len(each) == epochs
    aucs = []
    for releases in (1, epochs):
        together = torch.stack(each[:releases]).sum(0)
        auc = spectral_attack(seen(together), labels=labels_of(made), seed=0).auc
        assert auc is not None
        # Phi(d / sqrt 2), with means 2 clip apart and k releases in noise of noise x clip.
        best = 0.5 * (1 + math.erf(math.sqrt(releases) / noise))
        assert auc < best + 0.1
        aucs.append(auc)
    assert aucs[1] > aucs[0] + 0.1, "an example that is told nine times is told better"


def test_of_randomised_labels_an_attack_gets_the_drawn_ones_and_no_more(tmp_path: Path) -> None:
    whole = Encoded(tuple(examples()), rows=(), labels=("a", "b"), gold=(), left_out=0)
    keep = keep_probability(1.1, classes=2)
    drawn = randomised(whole, keep=keep, secret=bytes(range(32)))
    made = batch(drawn.examples, pad_id=1)
    (g_ND,) = gradients(sent(tmp_path, made, None, steps=1)[0])
    truth = made.truth["labels"].tolist()
    assert clustering_attack(seen(g_ND), labels=labels_of(made), seed=0).accuracy > 0.99
    found = clustering_attack(seen(g_ND), labels=truth, seed=0).accuracy
    slack = 4 * math.sqrt(keep * (1 - keep) / COUNT)
    assert keep - slack < found < keep + slack
    assert abs(response_epsilon(keep, classes=2) - 1.1) < 1e-9
