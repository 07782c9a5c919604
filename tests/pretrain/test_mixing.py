import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.pretrain import draw, shares

SIZES = st.dictionaries(st.sampled_from("abcdef"), st.floats(1, 1e9), min_size=1)


@given(SIZES, st.floats(0, 1))
def test_shares_add_up_and_smoothing_never_changes_the_order(
    sizes: dict[str, float], alpha: float
) -> None:
    found = shares(sizes, alpha=alpha)
    assert math.isclose(sum(found.values()), 1)
    ordered = sorted(sizes, key=lambda name: sizes[name])
    assert all(found[a] <= found[b] for a, b in itertools.pairwise(ordered))


def test_a_smaller_exponent_gives_the_small_language_more() -> None:
    sizes = {"en": 1e6, "sw": 1e3}
    assert shares(sizes, alpha=0.3)["sw"] > shares(sizes, alpha=0.7)["sw"] > 1e3 / 1e6


@pytest.mark.parametrize("sizes", [{}, {"en": 0.0}, {"en": 1.0, "sw": -1.0}])
def test_a_language_of_no_size_is_refused(sizes: dict[str, float]) -> None:
    with pytest.raises(ManifestError, match="size above 0"):
        shares(sizes, alpha=0.5)


def test_draws_follow_the_chances() -> None:
    chances = {"en": 0.7, "sw": 0.2, "zh": 0.1}
    drawn = Counter(draw(chances, seed=3, step=step) for step in range(4000))
    assert all(abs(drawn[name] / 4000 - chance) < 0.03 for name, chance in chances.items())


def test_a_draw_does_not_depend_on_the_order_of_names() -> None:
    chances = {"en": 0.7, "sw": 0.2, "zh": 0.1}
    other = dict(reversed(chances.items()))
    assert [draw(chances, seed=1, step=s) for s in range(99)] == [
        draw(other, seed=1, step=s) for s in range(99)
    ]
