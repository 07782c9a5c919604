import pytest
from pydantic import ValidationError

from splitlearn.manifest.pretraining import (
    EncoderTable,
    StepsTable,
    VocabularyTable,
    encoder_faults,
)


def test_a_model_to_begin_from_has_its_own_measures() -> None:
    assert not list(encoder_faults(EncoderTable(path=None, width=64, heads=4)))
    odd = EncoderTable(width=64, heads=5)
    assert [fault.key for fault in encoder_faults(odd)] == ["model.heads"]


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"dropout": 1.0}, {"spread": 0.0}, {"size": 3}])
def test_measures_have_bounds(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EncoderTable.model_validate(wrong)


def test_a_digest_is_hex(tmp_path: object) -> None:
    with pytest.raises(ValidationError):
        VocabularyTable.model_validate({"file": __file__, "digest": "XYZ"})
    assert VocabularyTable.model_validate({"file": __file__, "digest": "a" * 64}).digest


def test_steps_default_to_those_of_all_rounds() -> None:
    assert StepsTable().total_steps is None
