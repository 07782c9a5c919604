from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.manifest import Job
from splitlearn.split.rows import mask_of, positions_of
from splitlearn.tasks.batches import Batch, Steps, batch, epoch_order, micro_batches
from splitlearn.tasks.encode import IGNORED, Example

MakeJob = Callable[..., Job]
PAD = 99


def example(number: int, length: int, *, types: bool = True) -> Example:
    return Example(
        input_ids=(number,) * length,
        token_type_ids=(1,) * length if types else None,
        targets={"labels": number},
        items=1,
        row=number,
    )


def tagged(number: int, length: int) -> Example:
    return Example(
        input_ids=(number,) * length,
        token_type_ids=None,
        targets={"labels": (IGNORED, *(number,) * (length - 1))},
        items=length - 1,
        row=number,
    )


def answer(number: int) -> Example:
    return Example(
        input_ids=(number,) * 3,
        token_type_ids=None,
        targets={"start_positions": 1, "end_positions": 2},
        items=1,
        row=number,
    )


def test_a_batch_is_padded_on_the_right_to_its_longest() -> None:
    made = batch([example(1, 2), example(2, 4)], pad_id=PAD)
    assert made.inputs["input_ids"].tolist() == [[1, 1, PAD, PAD], [2, 2, 2, 2]]
    assert made.inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert made.inputs["token_type_ids"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert made.labels["labels"].tolist() == [1, 2]
    assert (made.lengths, made.items) == ((2, 4), 2)
    assert {tensor.dtype for tensor in made.inputs.values()} == {torch.int64}


def test_token_types_are_left_out_where_the_tokenizer_has_none() -> None:
    assert set(batch([example(1, 2, types=False)], pad_id=PAD).inputs) == {
        "input_ids",
        "attention_mask",
    }


def test_word_targets_are_padded_with_the_ignored_one_and_weigh_their_number() -> None:
    made = batch([tagged(1, 2), tagged(2, 4)], pad_id=PAD)
    assert made.labels["labels"].tolist() == [
        [IGNORED, 1, IGNORED, IGNORED],
        [IGNORED, 2, 2, 2],
    ]
    assert made.items == 4


def test_answers_keep_both_of_their_names() -> None:
    made = batch([answer(1), answer(2)], pad_id=PAD)
    assert {name: tensor.tolist() for name, tensor in made.labels.items()} == {
        "start_positions": [1, 1],
        "end_positions": [2, 2],
    }


@given(st.integers(0, 200), st.integers(0, 10_000_000), st.integers(0, 50))
def test_an_order_is_a_permutation_that_seed_and_epoch_decide(
    n: int, seed: int, epoch: int
) -> None:
    order = epoch_order(n, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(n))
    assert order == epoch_order(n, seed=seed, epoch=epoch)


def test_orders_differ_between_seeds_and_epochs_and_are_known_ones() -> None:
    orders = {epoch_order(20, seed=seed, epoch=epoch) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert epoch_order(8, seed=1, epoch=2) == (5, 2, 4, 6, 1, 7, 0, 3)


def seen(batches: list[Batch]) -> list[int]:
    return [int(number) for made in batches for number in made.labels["labels"]]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_every_example_is_in_one_micro_batch_in_order(n: int, batch_size: int, pieces: int) -> None:
    examples = [example(number, 1 + number % 5) for number in range(n)]
    order = epoch_order(n, seed=0, epoch=0)
    steps = list(
        micro_batches(examples, order, batch_size=batch_size, micro_batches=pieces, pad_id=PAD)
    )
    assert [number for step in steps for number in seen(step)] == list(order)
    assert [number for step in steps for made in step for number in made.samples] == list(order)
    assert len(steps) == -(-n // batch_size)
    for step in steps:
        sizes = [len(made.lengths) for made in step]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert len(step) == min(pieces, sum(sizes))
        for made in step:
            assert made.inputs["input_ids"].shape == (len(made.lengths), max(made.lengths))
            assert made.inputs["attention_mask"].sum(dim=1).tolist() == list(made.lengths)


@pytest.mark.parametrize(
    ("schedule", "total"), [({"epochs": 3}, 9), ({"epochs": None, "steps": 7}, 7)]
)
def test_steps_gives_any_step_of_the_run_as_the_epochs_one_after_another_do(
    make_job: MakeJob, schedule: dict[str, object], total: int
) -> None:
    job = make_job(schedule={**schedule, "batch_size": 4, "micro_batches": 2}, run={"seed": 5})
    examples = [example(number, 2) for number in range(10)]
    steps = Steps(examples, job=job, pad_id=PAD)
    assert (steps.per_epoch, steps.total) == (3, total)
    straight = [
        step
        for epoch in range(3)
        for step in micro_batches(
            examples,
            epoch_order(10, seed=5, epoch=epoch),
            batch_size=4,
            micro_batches=2,
            pad_id=PAD,
        )
    ]
    for number in reversed(range(total)):
        assert seen(steps(number)) == seen(straight[number])
        assert len(steps(number)) == len(straight[number])


def language(number: int, length: int) -> Example:
    return replace(tagged(number, length), next_token=True)


def test_joined_texts_fill_rows_in_order_and_begin_to_count_anew() -> None:
    made = batch(
        [language(n, length) for n, length in ((1, 3), (2, 2), (3, 4), (4, 1))], pad_id=PAD, join=6
    )
    assert made.inputs["input_ids"].tolist() == [[1, 1, 1, 2, 2], [3, 3, 3, 3, 4]]
    assert made.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert made.labels["labels"].tolist() == [
        [IGNORED, 1, 1, IGNORED, 2],
        [IGNORED, 3, 3, 3, IGNORED],
    ]
    assert (made.lengths, made.items, made.joined, made.next_token) == ((3, 2, 4, 1), 6, True, True)
    assert "attention_mask" not in made.inputs


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(9, 20))
def test_texts_are_joined_as_the_rows_of_a_trunk_are_laid(lengths: list[int], join: int) -> None:
    made = batch([language(n, length) for n, length in enumerate(lengths)], pad_id=PAD, join=join)
    width = made.inputs["input_ids"].shape[1]
    assert torch.equal(made.inputs["position_ids"], positions_of(lengths, width=width))
    real_BT = mask_of(lengths, width=width, joined=True)
    assert made.inputs["input_ids"][real_BT].tolist() == [
        n for n, length in enumerate(lengths) for _ in range(length)
    ]


def test_a_job_that_joins_has_joined_steps(make_job: MakeJob) -> None:
    task = {"task": "causal-language-modelling"}
    for join in (True, False):
        data = {"max_length": 8, "join": join}
        steps = Steps(
            [language(n, 3) for n in range(5)], job=make_job(model=task, data=data), pad_id=0
        )
        made = steps(0)[0]
        assert made.joined is join
        assert made.inputs["input_ids"].shape == ((2, 6) if join else (4, 3))
        assert len(made.samples) == len(made.lengths) == 4
