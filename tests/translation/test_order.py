import random

from splitlearn.translation.order import Order

LENGTHS = [random.Random(i).randrange(3, 40) for i in range(103)]


def test_every_sample_comes_once_an_epoch_and_in_another_order() -> None:
    order = Order(LENGTHS, batch=8, seed=3)
    assert order.per_epoch == 13
    epochs = [[order(step) for step in range(at, at + 13)] for at in (0, 13)]
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == list(range(103))
    assert epochs[0] != epochs[1]


def test_a_batch_follows_from_seed_and_step_alone() -> None:
    one, other = Order(LENGTHS, batch=8, seed=3), Order(LENGTHS, batch=8, seed=3)
    forwards = [one(step) for step in range(40)]
    assert [other(step) for step in reversed(range(40))] == forwards[::-1]
    assert Order(LENGTHS, batch=8, seed=4)(0) != forwards[0]


def test_samples_of_a_batch_are_about_as_long() -> None:
    order = Order(LENGTHS, batch=8, seed=3)
    spreads = [
        max(LENGTHS[i] for i in order(step)) - min(LENGTHS[i] for i in order(step))
        for step in range(order.per_epoch)
    ]
    assert sum(spreads) / len(spreads) < 10
