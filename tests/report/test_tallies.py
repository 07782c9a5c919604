"""Counts and the rows they become."""

from splitlearn.audit import PartShape
from splitlearn.report.document import MAX_ROWS
from splitlearn.report.tallies import Bound, NoiseSum, Table, flat, shapes
from tests.report.logs import PAYLOAD


def test_a_full_table_counts_what_it_leaves_out() -> None:
    table = Table(limit=2)
    assert [table.room() for _ in range(5)] == [True, True, False, False, False]
    assert table.left_out == 3


def test_an_accounting_of_any_form_becomes_names_and_values() -> None:
    said = {"mechanism": "gaussian", "unit": {"of": "example", "how": {"many": 1}}}
    assert flat(said) == (
        ("mechanism", "gaussian"),
        ("unit.of", "example"),
        ("unit.how.many", 1),
    )
    assert flat(None) == ()
    assert flat("none", name="dp") == (("dp", "none"),)


def test_numbers_that_run_on_become_a_range() -> None:
    noise = NoiseSum()
    noise.stretch([("epoch", 3), ("seed", 7)])
    noise.stretch([("epoch", 0), ("seed", 7)])
    assert [(fact.name, fact.value) for fact in noise.facts] == [("epoch", "0 to 3"), ("seed", "7")]


def test_more_noise_levels_than_are_kept_leave_no_bound() -> None:
    bound = Bound()
    said = {"mechanism": "gaussian", "unit": "example", "relation": "replace-labels", "epoch": 0}
    for level in range(MAX_ROWS + 1):
        bound.add(PAYLOAD, said | {"noise": 1.0 + level})
    assert (bound.row("r").bare, bound.row("r").epsilon) == (1, None)


def test_an_accounting_that_is_not_known_leaves_no_bound() -> None:
    bound = Bound()
    said = {"mechanism": "laplace", "unit": "word", "relation": "x", "epoch": 0, "noise": 1.0}
    bound.add(PAYLOAD, said)
    row = bound.row("r")
    assert (row.epsilon, row.unit, row.releases, row.bare) == (None, "word", 1, 0)


def test_many_parts_are_counted_not_listed() -> None:
    parts = [PartShape(name="x", dtype="F32", shape=(2, n), data_bytes=8 * n) for n in range(9)]
    assert shapes(parts) == (*(f"F32[2 x {n}]" for n in range(6)), "and 3 more")
