"""Exit codes: which of several findings decides."""

from itertools import permutations

import pytest

from splitlearn.audit.findings import Exit, Finding, Findings, gravest


@pytest.mark.parametrize(
    ("exits", "sum_of_all"),
    [
        ((), Exit.CLEAN),
        ((Exit.CLEAN,), Exit.CLEAN),
        ((Exit.CLEAN, Exit.POLICY), Exit.POLICY),
        ((Exit.POLICY, Exit.UNCHECKABLE), Exit.UNCHECKABLE),
        ((Exit.UNCHECKABLE, Exit.MISMATCH), Exit.MISMATCH),
        ((Exit.POLICY, Exit.MISMATCH, Exit.INTEGRITY), Exit.INTEGRITY),
    ],
)
def test_the_gravest_decides_in_whatever_order_they_are_found(
    exits: tuple[Exit, ...], sum_of_all: Exit
) -> None:
    for order in permutations(exits):
        assert gravest(order) is sum_of_all


def test_codes_are_those_that_a_ci_was_told() -> None:
    assert {code.name.lower(): int(code) for code in Exit} == {
        "clean": 0,
        "policy": 1,
        "usage": 2,
        "integrity": 3,
        "mismatch": 4,
        "uncheckable": 5,
    }


def test_findings_stand_in_the_order_in_which_they_were_made() -> None:
    findings = Findings()
    findings.note(Exit.INTEGRITY, "line", "broken", record=7)
    findings.note(Exit.CLEAN, "gap", "a gap")
    assert findings == [
        Finding(Exit.INTEGRITY, "line", "broken", 7),
        Finding(Exit.CLEAN, "gap", "a gap"),
    ]
