import pytest
import torch

from splitlearn.leakage.known import Seen, Truth
from tests.leakage.room import embeddings, known_of, looked_up


def test_rows_and_lengths_that_disagree_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="one row a token"):
        Seen(torch.zeros(5, 4), (2, 2))


def test_marks_stand_beside_every_token_or_nowhere() -> None:
    assert Truth(((1, 2), (3,))).slots == ()
    with pytest.raises(AssertionError, match="one mark a token"):
        Truth(((1, 2), (3,)), ((True, False), (True, False)))


def test_the_vocabulary_is_as_large_as_the_embeddings_are_many() -> None:
    table_VD = embeddings()
    assert known_of(looked_up(table_VD), table_VD).vocabulary == len(table_VD)
