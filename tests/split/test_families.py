import pytest
from torch import nn

from splitlearn.split.anatomy import family_of, layers_of
from splitlearn.split.families import ACTIVATIONS, FAMILIES
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
