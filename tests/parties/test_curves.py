"""Curves of a run as TensorBoard reads them."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from parties.curves import Curves
from splitlearn.engine.events import Saved, StepDone, Watched


def test_each_step_and_each_score_is_a_point(tmp_path: Path) -> None:
    with Curves(tmp_path) as curves:
        curves(StepDone(0, 0.5, 0.25, 300, 200))
        curves(Saved(1))
        curves(StepDone(1, 0.25, 0.125, 301, 201, 2.5))
        curves(Watched(2, 0.75))
        curves.scores({"accuracy": 0.5}, step=2)
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    found = {
        name: [(point.step, pytest.approx(point.value)) for point in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
    }
    assert found == {
        "loss": [(0, 0.5), (1, 0.25)],
        "step_seconds": [(0, 0.25), (1, 0.125)],
        "bytes/out": [(0, 300), (1, 301)],
        "bytes/in": [(0, 200), (1, 201)],
        "gradient_norm": [(1, 2.5)],
        "held_out/score": [(2, 0.75)],
        "held_out/accuracy": [(2, 0.5)],
    }
