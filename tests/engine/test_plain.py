"""The unsplit loop against the same steps written out by hand."""

import copy

import torch

from splitlearn.engine.events import Evaluated, StepDone
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import freeze
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import OptimiserSpec, ScheduleSpec
from tests.rig import batch_of
from tests.tiny import tiny_batch, tiny_model

SGD = OptimiserSpec("sgd", 0.1, 0.0, 0.9, 0.999, 1e-8)
CONSTANT = ScheduleSpec("constant", 0, 3)


def train(model: torch.nn.Module, batches: list[Batch], *, seed: int = 0) -> list[float]:
    return train_plain(
        model,
        steps=lambda _: batches,
        optimiser=SGD,
        schedule=CONSTANT,
        seed=seed,
        observe=lambda _: None,
    )


def test_it_is_gradient_descent_on_the_mean_loss_of_the_batch() -> None:
    model = tiny_model("bert")
    by_hand = copy.deepcopy(model)
    batch = batch_of(tiny_batch(model))
    found = train(model, [batch])
    expected = []
    for _ in range(3):
        loss = by_hand(**batch.inputs, **batch.labels)["loss"]
        loss.backward()
        expected.append(loss.item())
        with torch.no_grad():
            for weight in by_hand.parameters():
                if weight.grad is not None:
                    weight.sub_(0.1 * weight.grad)
                    weight.grad = None
    assert found == expected
    for name, weight in by_hand.state_dict().items():
        assert torch.allclose(weight, model.state_dict()[name], atol=1e-7), name


def test_micro_batches_of_different_sizes_weigh_as_much_as_they_hold() -> None:
    model = tiny_model("bert")
    whole = batch_of(tiny_batch(model, lengths=(9, 9, 9), width=9))
    parts = [
        Batch(
            inputs={name: tensor[rows] for name, tensor in whole.inputs.items()},
            labels={name: tensor[rows] for name, tensor in whole.labels.items()},
            lengths=whole.lengths[rows],
            items=len(whole.lengths[rows]),
        )
        for rows in (slice(0, 1), slice(1, 3))
    ]
    at_once, in_parts = train(copy.deepcopy(model), [whole]), train(model, parts)
    assert torch.allclose(torch.tensor(at_once), torch.tensor(in_parts), atol=1e-6)


def test_what_is_frozen_stands_still_and_does_not_drop_out() -> None:
    model = tiny_model("bert", dropout=0.5)
    freeze(model, cut=Cut(1, 3), mode="features", train_bottom=False)
    before = copy.deepcopy(model.state_dict())
    train(model, [batch_of(tiny_batch(model))])
    assert not model.bert.embeddings.training
    moved = {n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])}
    assert moved
    assert all(
        name.startswith(("bert.encoder.layer.3", "bert.pooler", "classifier")) for name in moved
    )


def test_dropout_depends_on_the_seed_alone() -> None:
    losses = []
    for seed in (5, 5, 6):
        model = tiny_model("bert", dropout=0.2)
        torch.rand(3)  # whatever else drew numbers
        losses.append(train(model, [batch_of(tiny_batch(model))], seed=seed))
    assert losses[0] == losses[1] != losses[2]


def test_steps_and_evaluations_are_told_as_they_come() -> None:
    model = tiny_model("bert")
    batch = batch_of(tiny_batch(model))
    told: list[object] = []
    losses = train_plain(
        model,
        steps=lambda _: [batch],
        optimiser=SGD,
        schedule=CONSTANT,
        seed=0,
        observe=told.append,
    )
    assert [(e.step, e.loss, e.sent_bytes) for e in told if isinstance(e, StepDone)] == [
        (step, loss, 0) for step, loss in enumerate(losses)
    ]
    told.clear()
    evaluate_plain(model, batches=[batch, batch], observe=told.append)
    assert told == [Evaluated(1), Evaluated(2)]


def test_an_evaluation_neither_drops_out_nor_needs_labels() -> None:
    model = tiny_model("bert", dropout=0.5)
    batch = batch_of(tiny_batch(model))
    ((one),) = evaluate_plain(model, batches=[batch], observe=lambda _: None)
    with torch.no_grad():
        expected = model.train(False)(**batch.inputs).logits
    assert torch.equal(one["logits"], expected)
    assert not one["logits"].requires_grad
