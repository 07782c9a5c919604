"""Verdicts derived again from the policy in a log, budgets included."""

import msgspec
import pytest

from parties.audit_judge import judge_of
from splitlearn.audit import Payload, RunOpen
from splitlearn.errors import ManifestError
from splitlearn.policy import load
from splitlearn.roles import Kind
from tests.door import POLICIES, Door, records, rows


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunOpen, Payload]:
    """The beginning of a run and the one activation in it."""
    door = Door(tmp_path_factory.mktemp("audit"))
    door.send(rows())
    door.gate.close(outcome="done")
    door.log.close()
    found = records(door.folder)
    (opened,) = (r for r in found if isinstance(r, RunOpen))
    (sent,) = (r for r in found if isinstance(r, Payload) and r.kind is Kind.ACTIVATION)
    return opened, sent


def test_a_verdict_is_derived_again_from_the_policy_in_the_log(
    said: tuple[RunOpen, Payload],
) -> None:
    opened, sent = said
    assert judge_of(opened.policy_text)(sent) is None
    strict = load(POLICIES / "strict.toml").canonical.decode()
    assert judge_of(strict)(sent) is None
    gradient = msgspec.structs.replace(sent, kind=Kind.GRADIENT, rules=("gradient",))
    assert judge_of(opened.policy_text)(gradient) is None
    assert "no rule" in str(judge_of(strict)(gradient))
    assert "max_columns" in str(judge_of(strict)(msgspec.structs.replace(sent, columns=5_000)))
    generated = msgspec.structs.replace(sent, phase="generate")
    assert "generating = true" in str(judge_of(strict)(generated))
    assert "not ('run',)" in str(judge_of(strict)(msgspec.structs.replace(sent, rules=("run",))))


def test_budgets_are_added_up_again(said: tuple[RunOpen, Payload]) -> None:
    opened, sent = said
    tight = opened.policy_text.replace("68719476736", str(sent.wire_bytes + 1))
    judge = judge_of(tight)
    assert judge(sent) is None
    assert "max_run_bytes" in str(judge(sent))


def test_what_a_rule_let_through_under_an_older_policy_counts(
    said: tuple[RunOpen, Payload],
) -> None:
    opened, sent = said
    tight = opened.policy_text.replace("68719476736", str(sent.wire_bytes + 1))
    assert "max_run_bytes" in str(judge_of(tight, {sent.rules[0]: 2})(sent))
    assert judge_of(tight, {"another": 2})(sent) is None


def test_a_text_that_is_no_policy_is_said_so() -> None:
    with pytest.raises(ManifestError):
        judge_of("{}")
