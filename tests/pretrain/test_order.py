from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pretrain.order import seed_of, shuffled


@given(st.integers(1, 600), st.integers(0, 2**63))
def test_each_number_stands_once(count: int, seed: int) -> None:
    found = [shuffled(number, count=count, seed=seed) for number in range(count)]
    assert sorted(found) == list(range(count))


@given(st.integers(1, 2**40), st.integers(0, 2**63), st.data())
def test_a_number_among_many_is_found_at_once(count: int, seed: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, count - 1))
    assert 0 <= shuffled(number, count=count, seed=seed) < count


def test_places_are_spread_evenly_over_seeds() -> None:
    places = Counter(shuffled(3, count=10, seed=seed) for seed in range(5_000))
    assert set(places) == set(range(10))
    assert max(places.values()) < 1.3 * 500


def test_parts_of_a_seed_are_told_apart() -> None:
    seeds = [seed_of("a", 1, 2), seed_of("a", 12), seed_of("b", 1, 2), seed_of("a", 2, 1)]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
