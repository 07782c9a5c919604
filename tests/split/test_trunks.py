import pytest

from splitlearn.split.families import FAMILIES
from splitlearn.split.trunks import TRUNKS, trunk_name
from splitlearn.wire.messages import TrunkModel


@pytest.mark.parametrize("row", TRUNKS)
def test_whose_layers_are_handed_a_memory_is_told_by_the_rows_name(row: str) -> None:
    """What the wire's metadata say without the table is what the table says."""
    for encoder in (2, 6):
        border = TRUNKS[row].border(encoder)
        for first in (0, 1, encoder, encoder + 1):
            told = TrunkModel(row, {"layers": encoder}).takes_memory(first)
            assert told is (border is not None and first >= border)


def test_a_decoder_that_has_an_encoder_is_a_row_beside_its_encoders() -> None:
    more = {name: row for name, row in TRUNKS.items() if name not in FAMILIES}
    assert {name: (row.model_type, row.stack) for name, row in more.items()} == {
        f"{model_type}-{stack}": (model_type, stack)
        for model_type in ("bart", "marian", "t5", "mt5")
        for stack in ("decoder", "both")
    }
    for name, row in more.items():
        assert trunk_name(row.model_type, stack=row.stack) == name
        encoder = FAMILIES[row.model_type]
        assert encoder.layers.startswith(f"{row.memory}.")
        assert set(encoder.fixed) <= set(row.fixed) or row.stack == "decoder"
        assert set(encoder.embeddings) < set(row.embeddings)
        assert set(encoder.fields) <= set(row.fields)
        assert row.walkers in {("decoder", "encoder"), ("encoder", "decoder")}
        assert row.border(3) == (3 if row.stack == "both" else 0)
    assert not any(row.memory for row in FAMILIES.values())
    assert FAMILIES["bart"].border(3) is None
