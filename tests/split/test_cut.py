import msgspec
import pytest

from splitlearn.errors import ManifestError
from splitlearn.split.cut import Bottleneck, Cut, cut_of, fault, place, spec_of

PCA, SFT = Bottleneck("pca", 8), Bottleneck("sft", 8)


def test_a_negative_top_counts_from_the_end() -> None:
    assert place(bottom=2, top=-1, layers=6, width=32) == Cut(2, 5)
    assert place(bottom=2, top=5, layers=6, width=32) == Cut(2, 5)


@pytest.mark.parametrize(
    ("bottom", "top"), [(0, 3), (3, 3), (4, 3), (2, 7), (2, -4), (2, -9), (-1, 3), (6, 6)]
)
def test_a_cut_without_a_trunk_or_a_bottom_is_refused(bottom: int, top: int) -> None:
    with pytest.raises(ManifestError, match=rf"bottom = {bottom}, top = {top} does not fit"):
        place(bottom=bottom, top=top, layers=6, width=32)


@pytest.mark.parametrize("rank", [0, -1, 33])
@pytest.mark.parametrize("method", ["pca", "sft"])
@pytest.mark.parametrize("where", ["lower", "upper"])
def test_a_rank_that_is_no_narrowing_is_refused(where: str, method: str, rank: int) -> None:
    found = fault(Cut(1, 2, **{where: Bottleneck(method, rank)}), layers=4, width=32)
    assert found is not None
    assert where in found
    assert str(rank) in found


def test_a_rank_without_a_method_is_refused() -> None:
    assert fault(Cut(1, 2, lower=Bottleneck("none", 8)), layers=4, width=32) is not None


def test_entrance_and_exit_are_the_width_or_the_rank() -> None:
    assert (Cut(1, 2).entrance(32), Cut(1, 2).exit(32)) == (32, 32)
    cut = Cut(1, 2, lower=PCA, upper=Bottleneck("sft", 4))
    assert (cut.entrance(32), cut.exit(32)) == (8, 4)


def test_a_block_cut_through_above_is_not_held_whole() -> None:
    assert list(Cut(1, 4).whole) == [1, 2, 3]
    assert list(Cut(1, 4, lower=SFT, upper=PCA).whole) == [1, 2, 3]
    assert list(Cut(1, 4, upper=SFT).whole) == [1, 2]
    assert list(Cut(1, 2, upper=SFT).whole) == []


def test_a_cut_is_narrow_if_either_side_is() -> None:
    assert not Cut(1, 2).narrow
    assert Cut(1, 2, lower=PCA).narrow
    assert Cut(1, 2, upper=SFT).narrow


@pytest.mark.parametrize("lower", [Bottleneck(), PCA, SFT])
@pytest.mark.parametrize("upper", [Bottleneck(), PCA, SFT])
def test_a_cut_survives_the_wire(lower: Bottleneck, upper: Bottleneck) -> None:
    cut = Cut(2, 5, lower, upper)
    spec = spec_of(cut)
    assert cut_of(msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=type(spec))) == cut


def test_the_parts_of_a_trunk_have_its_bottlenecks_at_their_outer_ends() -> None:
    whole = Cut(1, 6, lower=PCA, upper=SFT)
    assert whole.parts(()) == (whole,)
    assert whole.parts((2, 5)) == (Cut(1, 2, lower=PCA), Cut(2, 5), Cut(5, 6, upper=SFT))
    assert [i for part in whole.parts((2, 5)) for i in part.whole] == list(whole.whole)


@pytest.mark.parametrize("starts", [(1,), (6,), (3, 3), (4, 2)])
def test_a_part_without_a_layer_is_our_own_mistake(starts: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="a layer"):
        Cut(1, 6).parts(starts)
