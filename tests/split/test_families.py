import pytest
from torch import nn

from splitlearn.split.anatomy import family_of, layers_of
from splitlearn.split.families import ACTIVATIONS, FAMILIES, TRUNKS, trunk_name
from splitlearn.wire.messages import TrunkModel
from tests.tiny import DECODERS, ENCODERS, WRITERS, tiny_model


def test_a_row_names_itself_and_every_row_is_of_one_sort() -> None:
    assert all(name == family.model_type for name, family in FAMILIES.items())
    assert sorted(FAMILIES) == sorted([*ENCODERS, *DECODERS, *WRITERS])


@pytest.mark.parametrize("model_type", ENCODERS)
def test_the_halves_of_a_block_are_all_of_its_weights(model_type: str) -> None:
    model = tiny_model(model_type)
    halves, block = family_of(model).halves, layers_of(model)[0]
    assert halves is not None
    parts = [halves.attention, halves.expand, halves.contract, halves.norm, halves.dropout]
    parts += [halves.attention_norm] if halves.attention_norm else []
    found = {id(p) for part in parts for p in block.get_submodule(part).parameters()}
    assert found == {id(p) for p in block.parameters()}
    assert isinstance(block.get_submodule(halves.activation), nn.Module)


def test_no_activation_in_the_table_has_weights() -> None:
    from transformers.activations import ACT2FN

    for name in ACTIVATIONS.values():
        assert not list(ACT2FN[name].parameters()), name


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
