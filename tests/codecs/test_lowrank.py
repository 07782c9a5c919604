import pytest
import torch

from splitlearn.codecs.lowrank import Svd
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES


def through(codec: Svd, x_ND: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1.0, 1e9, 1e30])
@pytest.mark.parametrize("shape", [(40, 24), (24, 40)])
def test_what_is_lost_is_what_the_dropped_singular_values_hold(
    shape: tuple[int, int], size: float
) -> None:
    x_ND = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    y_ND = through(Svd("svd-0.6", share=0.6), x_ND * size) / size
    s_R = torch.linalg.svdvals(x_ND.double())
    expected = float(s_R[14:].norm() / s_R.norm())
    assert float((x_ND - y_ND).norm() / x_ND.norm()) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3)])
@pytest.mark.parametrize("share", [0.001, 0.5, 1.0])
def test_parts_are_those_the_layout_declares(shape: tuple[int, int], share: float) -> None:
    codec = Svd("svd", share=share)
    parts = codec.encode(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    layout = codec.layout(rows=shape[0], width=shape[1])
    assert [(p.name, p.dtype, p.shape) for p in parts] == list(layout)


def test_zeros_stay_zero_and_an_orthogonal_matrix_survives_at_full_rank() -> None:
    codec = Svd("svd-1", share=1.0)
    assert not through(codec, torch.zeros(4, 6)).any()
    assert torch.allclose(through(codec, torch.eye(5)), torch.eye(5), atol=1e-3)


def test_rows_or_width_other_than_agreed_are_refused() -> None:
    codec = Svd("svd-0.5", share=0.5)
    parts = codec.encode(torch.ones(6, 8))
    for rows, width in ((8, 8), (6, 10), (MAX_FRAME_BYTES, 2)):
        with pytest.raises(WireError):
            codec.decode(parts, rows=rows, width=width)
