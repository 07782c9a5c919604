import dataclasses

import pytest

from splitlearn.errors import ManifestError
from splitlearn.pretrain.settings import ModelSettings, TrainingSettings


@pytest.mark.parametrize(
    "change", [{"total_steps": 0}, {"learning_rate": 0.0}, {"warmup_steps": -1}, {"clip": -1.0}]
)
def test_numbers_that_train_nothing_are_refused(change: dict[str, float]) -> None:
    fine = TrainingSettings(total_steps=10)
    with pytest.raises(ManifestError, match="expected numbers above 0"):
        dataclasses.replace(fine, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"heads": 3}, {"layers": 0}, {"dropout": 1.0}, {"spread": 0.0}, {"positions": -1}]
)
def test_sizes_that_make_no_model_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ManifestError, match="heads that divide the width"):
        dataclasses.replace(ModelSettings(), **change)  # type: ignore[arg-type]
