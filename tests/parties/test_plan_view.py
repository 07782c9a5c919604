"""What the planner found, as a person and as a program read it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parties.plan_view import figures, show
from splitlearn.pipeline.planner import one
from tests.pipeline.planning import GIVEN, LINK, SPEEDS

FEATURES = replace(GIVEN, gradients=False, returns=False, keeps=True)


def test_figures_are_json_and_those_of_the_plan() -> None:
    plan = one(GIVEN, speeds=SPEEDS, link=LINK)
    found = json.loads(json.dumps(figures(plan, SPEEDS)))
    assert found["step_s"] == plan.step_s
    assert found["limit_s"] == plan.costed.limit_s
    assert (found["up_bytes"], found["down_bytes"]) == (plan.costed.up, plan.costed.down)
    assert found["kept_step_s"] is None
    assert found["setting"]["micro_batches"] == GIVEN.micro_batches
    assert set(found["busy_s"]) >= {"trusted", "compute"}


def test_a_person_sees_both_columns_or_that_nothing_keeps_what_is_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = one(GIVEN, speeds=SPEEDS, link=LINK)
    show(plan, plan, None, speeds=SPEEDS, job=Path("job.toml"))
    shown = capsys.readouterr().out
    assert "the plan" in shown
    assert "input_gradient" in shown
    assert "preflight job.toml measures it" in shown
    show(plan, None, plan, speeds=SPEEDS, job=Path("job.toml"))
    shown = capsys.readouterr().out
    assert "no setting keeps what is wanted" in shown
    assert "schedule.staleness = 1 would make a step" in shown


def test_what_does_not_travel_has_no_row_and_later_epochs_have_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(one(FEATURES, speeds=SPEEDS, link=LINK), None, None, speeds=SPEEDS, job=Path("job.toml"))
    shown = capsys.readouterr().out
    assert "input_gradient" not in shown
    assert "nothing sent" in shown
