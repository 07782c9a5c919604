"""Labels drawn once: how many change, that they stay what they are, and what is left alone."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from splitlearn.policy.accounting import keep_probability
from splitlearn.tasks.batches import batch
from splitlearn.tasks.encode import IGNORED, Encoded, Example
from splitlearn.tasks.randomise import randomised
from splitlearn.tasks.rows import TextRow

SECRET = bytes(range(32))
COUNT = 6_000


def encoded(*, classes: int, count: int = COUNT) -> Encoded:
    examples = tuple(
        Example((2, 3), None, targets={"labels": number % classes}, items=1, row=number)
        for number in range(count)
    )
    names = tuple("abcdefgh"[:classes])
    return Encoded(
        examples=examples,
        rows=tuple(TextRow("x", None, names[e.row % classes]) for e in examples),
        labels=names,
        gold=tuple((names[e.row % classes],) for e in examples),
        left_out=0,
    )


def tagged(*labels: int) -> Encoded:
    example = Example((2,) * len(labels), None, targets={"labels": labels}, items=2, row=0)
    return replace(encoded(classes=3, count=1), examples=(example,))


def drawn(data: Encoded) -> list[int | tuple[int, ...]]:
    return [example.targets["labels"] for example in data.examples]


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (2.0, 2), (1.0, 5)])
def test_as_many_labels_stay_as_epsilon_says(epsilon: float, classes: int) -> None:
    keep = keep_probability(epsilon, classes=classes)
    data = encoded(classes=classes)
    found = drawn(randomised(data, keep=keep, secret=SECRET))
    kept = sum(one == two for one, two in zip(found, drawn(data), strict=True))
    assert abs(kept / COUNT - keep) < 4 * math.sqrt(keep * (1 - keep) / COUNT)
    # The chances of a label under two different truths are e^epsilon apart, no more.
    others = (1 - keep) / (classes - 1)
    assert keep / others == pytest.approx(math.exp(epsilon))


def test_every_other_class_is_as_likely_as_any() -> None:
    data = encoded(classes=5)
    pairs = zip(drawn(data), drawn(randomised(data, keep=0.2, secret=SECRET)), strict=True)
    moved = Counter((one, two) for one, two in pairs if one != two)
    assert len(moved) == 20
    expected = COUNT * 0.8 / 20
    assert all(abs(n - expected) < 5 * math.sqrt(expected) for n in moved.values())


def test_a_secret_draws_the_same_again_and_another_one_otherwise() -> None:
    data = encoded(classes=2, count=200)
    one, two = (randomised(data, keep=0.6, secret=SECRET) for _ in range(2))
    assert one == two
    assert drawn(one) != drawn(randomised(data, keep=0.6, secret=bytes(32)))


def test_a_label_depends_on_no_other_label_and_on_no_order() -> None:
    data = encoded(classes=2, count=200)
    backwards = replace(data, examples=tuple(reversed(data.examples)))
    found = drawn(randomised(data, keep=0.6, secret=SECRET))
    assert drawn(randomised(backwards, keep=0.6, secret=SECRET)) == found[::-1]


def test_tokens_without_a_label_get_none_and_each_word_is_drawn_by_itself() -> None:
    labels = (IGNORED, *(1,) * 60, IGNORED)
    (found,) = drawn(randomised(tagged(*labels), keep=0.5, secret=SECRET))
    assert isinstance(found, tuple)
    assert (found[0], found[-1]) == (IGNORED, IGNORED)
    assert set(found[1:-1]) == {0, 1, 2}


def test_the_truth_stays_with_the_example_and_what_scores_is_the_truth() -> None:
    data = encoded(classes=2, count=50)
    found = randomised(data, keep=0.5, secret=SECRET)
    assert [example.truth for example in found.examples] == [e.targets for e in data.examples]
    assert (found.gold, found.rows, found.labels) == (data.gold, data.rows, data.labels)
    made = batch(found.examples, pad_id=0)
    assert made.labels["labels"].tolist() == drawn(found)
    assert made.truth["labels"].tolist() == drawn(data)
    assert batch(data.examples, pad_id=0).truth == {}


def test_a_short_secret_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="secret"):
        randomised(encoded(classes=2, count=1), keep=0.5, secret=b"")
