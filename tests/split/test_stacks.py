"""Who has which layers of an encoder and its decoder: of three each, the decoder's are 3, 4 and 5."""

import pytest

from splitlearn.errors import ManifestError
from splitlearn.split.cut import Cut
from splitlearn.split.stacks import parts_of
from tests.crossed import both_model, crossed_model
from tests.tiny import tiny_model


def test_parts_of_one_stack_are_those_of_its_cut() -> None:
    cut = Cut(1, 4)
    for model in (tiny_model("bert", layers=5), crossed_model("bart", layers=5)):
        assert parts_of(model, cut=cut, starts=(2, 3)) == cut.parts((2, 3))


@pytest.mark.parametrize(
    ("starts", "parts"),
    [
        ((4,), [(1, 3), (4, 6)]),
        ((5,), [(1, 3), (5, 6)]),
        ((2, 4, 5), [(1, 2), (2, 3), (4, 5), (5, 6)]),
    ],
)
def test_the_encoders_layers_go_to_its_last_and_the_decoders_first_stay(
    starts: tuple[int, ...], parts: list[tuple[int, int]]
) -> None:
    found = parts_of(both_model("bart"), cut=Cut(1, 6), starts=starts)
    assert [(part.first, part.last) for part in found] == parts


@pytest.mark.parametrize("starts", [(), (2,), (3,), (3, 5)])
def test_a_party_has_layers_of_one_stack_and_the_decoders_first_stays(
    starts: tuple[int, ...],
) -> None:
    with pytest.raises(ManifestError, match="those of the decoder begin at 3"):
        parts_of(both_model("bart"), cut=Cut(1, 6), starts=starts)
    with pytest.raises(ManifestError, match="those of the decoder begin at 3"):
        parts_of(both_model("bart"), cut=Cut(4, 6), starts=())
