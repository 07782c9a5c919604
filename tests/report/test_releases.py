"""The count in little memory against the exact one, and epsilon against the table of accounting."""

from hypothesis import given
from hypothesis import strategies as st

from splitlearn.policy.accounting import gaussian, releases_of
from splitlearn.report.releases import DELTA, MAX_PASSES, Releases, epsilon_of

Sent = list[tuple[int, int, int]]


def count(sent: Sent) -> int | None:
    releases = Releases()
    for epoch, step, micro_batch in sent:
        releases.add(epoch=epoch, step=step, micro_batch=micro_batch)
    return releases.bound()


def run(*, epochs: int, steps: int, micro_batches: int, restarts: list[tuple[int, int]]) -> Sent:
    """What an honest run sends that stops after step `at` and goes on from step `back`."""
    total = epochs * steps
    spans, start = [], 0
    for at, back in restarts:
        spans.append((start, at))
        start = back
    spans.append((start, total))
    return [
        (step // steps, step, micro_batch)
        for first, end in spans
        for step in range(first, end)
        for micro_batch in range(micro_batches)
    ]


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=60))
def test_the_bound_is_never_below_the_exact_count(sent: Sent) -> None:
    bound = count(sent)
    assert bound is not None
    assert bound >= releases_of(sent)


def test_an_honest_run_with_restarts_is_counted_exactly() -> None:
    for restarts in ([], [(7, 5)], [(7, 5), (9, 5)], [(10, 10)], [(12, 8), (19, 18)]):
        sent = run(epochs=2, steps=10, micro_batches=3, restarts=restarts)
        assert count(sent) == releases_of(sent), restarts


def test_too_many_passes_have_no_bound() -> None:
    assert count([(0, 0, 0)] * (MAX_PASSES + 2)) is None
    assert count([]) == 0


def test_epsilon_is_that_of_the_accounting_and_levels_add_up() -> None:
    told = gaussian(noise=3.0, delta=DELTA, releases=8)
    assert abs(epsilon_of([(3.0, 8)]) - told.epsilon) < 1e-9
    assert abs(epsilon_of([(3.0, 3), (3.0, 5)]) - told.epsilon) < 1e-9
    assert epsilon_of([(3.0, 8), (9.0, 1)]) > told.epsilon
    assert epsilon_of([]) == 0.0
