import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from splitlearn.engine.scalars import Scalars


def test_points_are_those_that_tensorboard_reads(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path)
    for step in range(3):
        scalars.add("loss/sw", 1.0 / (step + 1), step)
    scalars.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [(p.step, p.value) for p in reader.Scalars("loss/sw")] == [
        (step, pytest.approx(1 / (step + 1))) for step in range(3)
    ]


def test_without_tensorboard_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    scalars = Scalars(tmp_path)
    scalars.add("loss/sw", 1.0, 1)
    scalars.close()
    assert list(tmp_path.iterdir()) == []
