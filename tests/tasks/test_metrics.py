import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.tasks.metrics import (
    accuracy,
    answer_scores,
    entities,
    entity_f1,
    macro_f1,
    majority,
    perplexity,
)

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=12)


def test_accuracy_counts() -> None:
    assert accuracy(["a", "b", "a"], ["a", "a", "a"]) == pytest.approx(2 / 3)
    assert accuracy([], []) == 0.0


def test_macro_f1_is_the_mean_of_the_classes_f1() -> None:
    # a: 1 hit, said 2, true 1; b: 1 hit, said 1, true 2; c: never.
    assert macro_f1(["a", "a", "b"], ["a", "b", "b"]) == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert macro_f1(["c"], ["a"]) == 0.0


@given(NAMES)
def test_what_is_right_everywhere_scores_one(gold: list[str]) -> None:
    assert accuracy(gold, gold) == 1.0
    assert macro_f1(gold, gold) == pytest.approx(1.0)


def test_majority_says_the_training_datas_most_frequent_class() -> None:
    assert majority(["a", "b", "b"], ["b", "a", "a", "a"]) == 0.25
    assert majority(["b", "a"], ["a", "b", "b"]) == pytest.approx(1 / 3)
    assert majority([], ["a"]) == 0.0


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O O", set()),
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("I-PER I-LOC", {("PER", 0, 1), ("LOC", 1, 2)}),
        ("B-PER I-LOC", {("PER", 0, 1), ("LOC", 1, 2)}),
        ("B-PER E-PER I-PER", {("PER", 0, 2), ("PER", 2, 3)}),
        ("S-LOC S-LOC O", {("LOC", 0, 1), ("LOC", 1, 2)}),
        ("I-PER S-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("NOUN NOUN VERB O", {("NOUN", 0, 2), ("VERB", 2, 3)}),
        ("B-人 I-人", {("人", 0, 2)}),
        ("X-1", {("X-1", 0, 1)}),
    ],
)
def test_entities_are_read_from_tags(tags: str, found: set[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == found


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "E-X", "S-Y"]), max_size=12))
def test_entities_never_overlap_and_cover_all_tagged_words(tags: list[str]) -> None:
    covered = [place for _, start, end in entities(tags) for place in range(start, end)]
    assert sorted(covered) == [place for place, tag in enumerate(tags) if tag != "O"]


def test_entity_f1_counts_whole_entities() -> None:
    gold = [["B-PER", "I-PER", "O"], ["B-LOC"]]
    assert entity_f1(gold, gold) == 1.0
    # One border wrong, one right: 1 hit of 2 said and 2 true.
    assert entity_f1([["B-PER", "O", "O"], ["B-LOC"]], gold) == 0.5
    assert entity_f1([["O"]], [["O"]]) == 1.0
    assert entity_f1([["B-X"]], [["O"]]) == 0.0
    # A word that truncation cut off has the tag "".
    assert entity_f1([["B-PER", "", "O"], ["B-LOC"]], gold) == 0.5


@pytest.mark.parametrize(
    ("said", "answers", "scores"),
    [
        ("The Berlin.", ["berlin"], (1.0, 1.0)),
        ("in Berlin", ["Berlin"], (0.0, 2 / 3)),
        ("", ["Berlin"], (0.0, 0.0)),
        ("Rome", ["Berlin", "Rome!"], (1.0, 1.0)),
        ("«Берлин»", ["берлин"], (1.0, 1.0)),
        ("非常好看", ["非常好"], (0.0, 6 / 7)),
        ("बर्लिन में", ["बर्लिन"], (0.0, 2 / 3)),
        ("في برلين؟", ["في برلين"], (1.0, 1.0)),
    ],
)
def test_answers_are_compared_as_squad_and_mlqa_do(
    said: str, answers: list[str], scores: tuple[float, float]
) -> None:
    assert answer_scores([said], [answers]) == pytest.approx(scores)


def test_answer_scores_are_means_over_the_questions() -> None:
    assert answer_scores(["a1", "b1"], [["a1"], ["b2"]]) == (0.5, 0.5)
    assert answer_scores([], []) == (0.0, 0.0)


def test_perplexity_of_saying_all_alike_is_how_many_there_are() -> None:
    assert perplexity(5 * math.log(60), 5) == pytest.approx(60)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(1e6, 1) == math.inf
