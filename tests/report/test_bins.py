"""Bins: nothing is lost when they widen, whatever the order."""

from hypothesis import given
from hypothesis import strategies as st

from splitlearn.report.bins import Bins

ADDED = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 10_000), st.integers(0, 100)), min_size=1
)


@given(ADDED, st.integers(1, 9))
def test_sums_are_kept_and_bins_are_few(added: list[tuple[str, int, int]], limit: int) -> None:
    bins = Bins[str](limit=limit)
    for key, at, amount in added:
        bins.add(key, at=at, amount=amount)
    rows = [bins.row(key) for key in bins.keys]
    assert sum(map(sum, rows)) == sum(amount for _, _, amount in added)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows[0]) <= limit
    for key in bins.keys:
        for index, total in enumerate(bins.row(key)):
            low = bins.first + index * bins.width
            inside = [n for k, at, n in added if k == key and low <= at < low + bins.width]
            assert total == sum(inside)
    assert bins.last == max(at for _, at, _ in added)


def test_a_step_number_of_any_size_is_taken() -> None:
    bins = Bins[str](limit=400)
    for at in (2**62, 0, 5):
        bins.add("a", at=at, amount=1)
    assert sum(bins.row("a")) == 3
    assert len(bins.row("a")) <= 400


def test_no_bins_are_false_and_have_no_keys() -> None:
    bins = Bins[str](limit=2)
    assert not bins
    assert bins.keys == ()
