import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pretrain.scores import area_under_curve


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40))
def test_the_area_is_the_share_of_pairs_told_apart(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in rows], dtype=np.float32)
    positive = np.array([flag for _, flag in rows])
    found = area_under_curve(scores, positive=positive)
    pairs = list(itertools.product(scores[positive], scores[~positive]))
    if not pairs:
        assert found is None
    else:
        wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
        assert found == pytest.approx(wins / len(pairs), abs=1e-12)


def test_a_large_count_overflows_nothing() -> None:
    scores = np.arange(300_000, dtype=np.float32)
    assert area_under_curve(scores, positive=scores >= 150_000) == 1.0
