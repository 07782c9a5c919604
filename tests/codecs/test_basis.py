import pytest
import torch

from splitlearn.codecs.basis import Basis, Pca
from splitlearn.codecs.transform import Transform
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES


def rows(count: int = 400, seed: int = 0) -> torch.Tensor:
    """Correlated columns around a mean far from zero."""
    generator = torch.Generator().manual_seed(seed)
    mix_DD = torch.randn(48, 48, generator=torch.Generator().manual_seed(9)) * torch.logspace(
        0, -2, 48
    )
    return torch.randn(count, 48, generator=generator) @ mix_DD.T + 3.0


def basis() -> Basis:
    x_ND = rows(2_000, seed=5)
    centred_ND = x_ND - x_ND.mean(0)
    _, vectors_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
    return Basis(x_ND.mean(0), vectors_DD.T.flip(0).contiguous())


def lost(x_ND: torch.Tensor, y_ND: torch.Tensor) -> float:
    return float((x_ND - y_ND).norm() / x_ND.norm())


def test_there_and_back_is_the_same_but_for_rounding() -> None:
    x_ND = rows()
    assert lost(x_ND, basis().out_of(basis().into(x_ND), width=48)) < 1e-5


def test_columns_are_the_rows_turned() -> None:
    z_DN = basis().columns(rows())
    assert torch.allclose(z_DN, basis().into(rows()).T, atol=1e-5)
    assert torch.allclose(z_DN, basis().vectors_DD @ (rows() - basis().mean_D).T, atol=1e-5)
    assert z_DN.is_contiguous()


def test_the_first_coordinates_hold_what_the_others_do_not() -> None:
    x_ND = rows()
    codec = Pca("pca-0.25", share=0.25, basis=basis())
    y_ND = codec.decode(codec.encode(x_ND), rows=400, width=48)
    dropped_NK = basis().into(x_ND)[:, 12:]
    assert lost(x_ND, y_ND) == pytest.approx(float(dropped_NK.norm() / x_ND.norm()), rel=0.01)
    assert codec.layout(rows=400, width=48)[0].shape == (400, 12)


def test_in_a_basis_the_transform_keeps_its_error_of_the_rows_and_takes_less() -> None:
    x_ND = rows()
    sizes = []
    for chosen in (None, basis()):
        codec = Transform("t", error=0.02, basis=chosen)
        parts = codec.encode(x_ND)
        assert lost(x_ND, codec.decode(parts, rows=400, width=48)) == pytest.approx(0.02, rel=0.06)
        sizes.append(len(parts[0].data))
    assert sizes[1] < 0.8 * sizes[0]


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 3e38])
def test_numbers_of_any_size_stay_finite(size: float) -> None:
    for codec in (Transform("t", error=0.1, basis=basis()), Pca("p", share=0.5, basis=basis())):
        x_ND = torch.full((3, 48), size)
        assert bool(torch.isfinite(codec.decode(codec.encode(x_ND), rows=3, width=48)).all())


def test_rows_of_another_width_than_the_basis_are_refused() -> None:
    for codec in (Transform("t", error=0.1, basis=basis()), Pca("p", share=0.5, basis=basis())):
        parts = codec.encode(rows(6))
        with pytest.raises(WireError):
            codec.encode(torch.ones(2, 47))
        for count, width in ((6, 47), (7, 48), (MAX_FRAME_BYTES, 2)):
            with pytest.raises(WireError):
                codec.decode(parts, rows=count, width=width)
