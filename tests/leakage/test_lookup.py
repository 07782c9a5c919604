import pytest
import torch

from splitlearn.leakage.lookup import enumerate_vocabulary, table
from splitlearn.leakage.score import recovery
from tests.leakage.room import decoder, encoder, victim
from tests.tiny import VOCABULARY


@pytest.mark.parametrize("rank", [8, 2])
def test_at_cut_0_the_table_reads_every_token_at_any_rank(rank: int) -> None:
    known = encoder(layers=0, rank=rank)
    seen, truth = victim(known, count=60)
    assert recovery(table(known, seen, seed=0), truth, known=known).top1 == 1.0


def test_a_bottom_that_mixes_tokens_has_no_table() -> None:
    known = encoder(layers=1)
    with pytest.raises(AssertionError, match="only where no layer mixes tokens"):
        table(known, victim(known)[0], seed=0)


def test_enumeration_reads_every_token_of_a_causal_model_from_few_numbers() -> None:
    known = decoder(rank=4)
    seen, truth = victim(known, count=12)
    guess = enumerate_vocabulary(known, seen, seed=0)
    assert recovery(guess, truth, known=known).top1 == 1.0
    tokens = [VOCABULARY * (place + 1) for text in truth.ids for place in range(len(text))]
    assert guess.budget["forward_tokens"] == sum(tokens)


def test_enumeration_survives_rounding_to_bfloat16() -> None:
    known = decoder(rank=8)
    seen, truth = victim(known, count=8)
    seen.rows_NR.copy_(seen.rows_NR.bfloat16().float())
    assert recovery(enumerate_vocabulary(known, seen, seed=0), truth, known=known).top1 == 1.0


def test_enumeration_stops_at_its_budget() -> None:
    known = decoder(rank=8)
    seen, truth = victim(known, count=3)
    first = len(truth.ids[0])
    budget = VOCABULARY * first * (first + 1) // 2
    guess = enumerate_vocabulary(known, seen, seed=0, budget_tokens=budget)
    assert guess.ranked_NK[:first, 0].tolist() == list(truth.ids[0])
    assert torch.equal(guess.ranked_NK[first:, 0], torch.zeros(len(seen.rows_NR) - first).long())


def test_enumeration_of_a_model_that_looks_ahead_is_our_own_mistake() -> None:
    known = encoder(layers=1)
    with pytest.raises(AssertionError, match="depends on later tokens"):
        enumerate_vocabulary(known, victim(known)[0], seed=0)
