import math

import pytest
import torch

from splitlearn.tasks.batches import batch
from splitlearn.tasks.encode import IGNORED, Example
from splitlearn.tasks.language import next_tokens


def text(*ids: int) -> Example:
    targets = {"labels": (IGNORED, *ids[1:])}
    return Example(ids, None, targets, items=len(ids) - 1, row=0, next_token=True)


TEXTS = [text(1, 2, 3, 4), text(5, 6), text(7, 8, 9)]


@pytest.mark.parametrize("join", [None, 6, 9])
def test_each_texts_loss_and_hits_are_those_of_its_own_tokens(join: int | None) -> None:
    made = batch(TEXTS, pad_id=0, join=join)
    ids_BT = made.inputs["input_ids"]
    logits_BTV = torch.zeros(*ids_BT.shape, 10)
    # Every token but the one before 4 says the next with certainty; of joined texts also across.
    for row, ids_T in enumerate(ids_BT):
        for place in range(len(ids_T) - 1):
            if ids_T[place + 1] != 4:
                logits_BTV[row, place, ids_T[place + 1]] = 100.0
    found = next_tokens(logits_BTV, made)
    assert found["hits"].tolist() == [2, 1, 2]
    assert found["losses"].tolist() == pytest.approx([math.log(10), 0.0, 0.0])
    assert found["losses"].dtype == torch.float64


def test_the_mean_is_the_loss_that_a_model_computes() -> None:
    made = batch(TEXTS, pad_id=0)
    logits_BTV = torch.randn(3, 4, 10, generator=torch.Generator().manual_seed(0))
    mean = next_tokens(logits_BTV, made)["losses"].sum() / made.items
    expected = torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].reshape(-1, 10), made.labels["labels"][:, 1:].reshape(-1)
    )
    assert mean.item() == pytest.approx(expected.item(), rel=1e-6)


def test_of_a_target_every_token_counts_where_it_stands() -> None:
    pairs = [
        Example((1, 2, 3), None, {"labels": (4, 5)}, 2, 0, target=True),
        Example((1,), None, {"labels": (6, 7, 8)}, 3, 0, target=True),
    ]
    made = batch(pairs, pad_id=0)
    assert made.inputs["input_ids"].shape == (2, 3)
    assert made.labels["labels"].tolist() == [[4, 5, IGNORED], [6, 7, 8]]
    assert made.seen.keys() == {"input_ids", "attention_mask", "labels"}
    logits_BTV = torch.zeros(2, 3, 10)
    logits_BTV[0, 0, 4] = logits_BTV[1, 2, 8] = 100.0
    found = next_tokens(logits_BTV, made)
    assert found["hits"].tolist() == [1, 1]
    assert found["losses"].tolist() == pytest.approx([math.log(10), 2 * math.log(10)])
