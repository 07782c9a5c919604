import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.codecs import build
from splitlearn.codecs.lowrank import Svd
from splitlearn.codecs.warm import LowRank
from splitlearn.errors import WireError
from splitlearn.wire import tensors
from splitlearn.wire.limits import MAX_FRAME_BYTES
from splitlearn.wire.tensors import Part


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def alike(rows: int, *, width: int = 48, seed: int) -> torch.Tensor:
    """Rows in the same few directions and some noise, as the messages of one layer are."""
    shared = drawn(12, width) * torch.logspace(1, -0.5, 12).unsqueeze(1)
    return drawn(rows, 12, seed=seed) @ shared + 0.05 * drawn(rows, width, seed=seed + 1)


def error(codec: LowRank | Svd, x_ND: torch.Tensor) -> float:
    y_ND = codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])
    return float((x_ND - y_ND).norm() / x_ND.norm())


def raw(codec: LowRank, x_ND: torch.Tensor) -> bytes:
    return tensors.encode(codec.encode(x_ND))


def best(x_ND: torch.Tensor, rank: int) -> float:
    s_R = torch.linalg.svdvals(x_ND.double())
    return float(s_R[rank:].norm() / s_R.norm())


def test_a_start_from_the_last_message_comes_near_the_svd_in_one_round() -> None:
    codec = LowRank("lowrank-4", rank=4)
    errors = [error(codec, alike(60 + i, seed=10 * i)) for i in range(6)]
    assert errors[0] < 1.05 * best(alike(60, seed=0), 4)
    assert errors[5] < 1.01 * best(alike(65, seed=50), 4)


@pytest.mark.parametrize("size", [1e-42, 1e-38, 1e-30, 1e-8, 1.0, 1e9, 1e30])
@pytest.mark.parametrize("shape", [(40, 24), (24, 40)])
def test_the_error_is_that_of_the_message_at_any_size(shape: tuple[int, int], size: float) -> None:
    x_ND = drawn(*shape)
    codec = LowRank("lowrank-8", rank=8)
    parts = codec.encode(x_ND * size)
    y_ND = codec.decode(parts, rows=shape[0], width=shape[1]) / size
    expected = best(x_ND, 8)
    # Denormals have few bits of their own.
    assert float((x_ND - y_ND).norm() / x_ND.norm()) == pytest.approx(
        expected, rel=0.1 if size > 1e-37 else 0.5
    )


def test_numbers_that_float32_barely_holds_are_cut_to_finite_ones() -> None:
    x_ND = torch.full((300, 20), 3e38)
    codec = LowRank("lowrank-2", rank=2)
    y_ND = codec.decode(codec.encode(x_ND), rows=300, width=20)
    assert torch.allclose(y_ND, torch.full((300, 20), 2.0**110), rtol=1e-2)


@pytest.mark.parametrize(
    "shape", [(0, 5), (1, 1), (3, 7), (7, 3), (4, 4), (4, 9), (9, 4), (5, 5), (5, 0), (0, 0)]
)
def test_messages_smaller_than_the_rank_come_through_whole(shape: tuple[int, int]) -> None:
    codec = LowRank("lowrank-4", rank=4)
    for start in (0, 1):  # cold, and after a message of full rank
        x_ND = drawn(*shape, seed=3)
        parts = tensors.decode(tensors.encode(codec.encode(x_ND)))
        layout = codec.layout(rows=shape[0], width=shape[1])
        assert [(p.name, p.dtype, p.shape) for p in parts] == list(layout)
        y_ND = codec.decode(parts, rows=shape[0], width=shape[1])
        assert y_ND.shape == x_ND.shape
        if min(shape) <= 4:
            assert torch.allclose(y_ND, x_ND, atol=5e-3)
        if not start and shape[1]:
            codec.encode(drawn(20, shape[1]))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_message_of_lower_rank_comes_through_whole_and_spoils_no_later_one(rank: int) -> None:
    codec, undisturbed = (LowRank("lowrank-4", rank=4) for _ in range(2))
    low_ND = drawn(30, rank) @ drawn(rank, 48)
    for seed in (0, 10):  # cold, and after a message of full rank
        y_ND = codec.decode(codec.encode(low_ND), rows=30, width=48)
        assert torch.allclose(y_ND, low_ND, atol=1e-2)
        assert bool(y_ND.any()) is (rank > 0)
        x_ND = alike(60, seed=seed)
        assert raw(codec, x_ND) == raw(undisturbed, x_ND)


def test_decoding_and_short_messages_do_not_change_what_is_written_next() -> None:
    one, other = (LowRank("lowrank-4", rank=4) for _ in range(2))
    assert raw(one, alike(30, seed=1)) == raw(other, alike(30, seed=1))
    parts = one.encode(alike(30, seed=2))
    other.encode(alike(30, seed=2))
    for _ in range(3):
        one.decode(parts, rows=30, width=48)
    one.encode(drawn(2, 48))
    one.encode(drawn(30, 16))  # another width has a memory of its own
    assert raw(one, alike(31, seed=3)) == raw(other, alike(31, seed=3))
    assert raw(one, alike(30, seed=1)) != raw(LowRank("l", rank=4), alike(30, seed=1))


def test_a_tensor_that_is_changed_later_does_not_change_what_was_remembered() -> None:
    one, other = (LowRank("lowrank-4", rank=4) for _ in range(2))
    x_ND = alike(30, seed=1)
    one.encode(x_ND)
    other.encode(x_ND.clone())
    x_ND.zero_()
    assert raw(one, alike(30, seed=2)) == raw(other, alike(30, seed=2))


@given(
    st.integers(0, 12),
    st.integers(1, 12),
    st.integers(1, 8),
    st.floats(-44, 38, allow_nan=False),
    st.integers(0, 99),
)
def test_any_finite_rows_come_back_finite_and_no_larger_than_they_were(
    rows: int, width: int, rank: int, power: float, seed: int
) -> None:
    x_ND = (drawn(rows, width, seed=seed) * 10.0**power).clamp(-3e38, 3e38)
    codec = LowRank("lowrank", rank=rank)
    for _ in range(2):
        parts = codec.encode(x_ND)
        y_ND = codec.decode(parts, rows=rows, width=width)
        assert bool(y_ND.isfinite().all())
        assert y_ND.double().norm() <= 1.02 * x_ND.double().norm() + 1e-42


def test_rows_or_width_other_than_agreed_are_refused() -> None:
    codec = LowRank("lowrank-3", rank=3)
    parts = codec.encode(torch.ones(6, 8))
    for rows, width in ((8, 8), (6, 10), (2, 8), (MAX_FRAME_BYTES, 2)):
        with pytest.raises(WireError):
            codec.decode(parts, rows=rows, width=width)


@pytest.mark.parametrize("spoilt", ["px", "pshift", "qx", "qshift"])
def test_a_part_that_is_missing_or_out_of_bounds_is_refused(spoilt: str) -> None:
    codec = build("lowrank-3")
    parts = codec.encode(drawn(6, 8))
    with pytest.raises(WireError):
        codec.decode([p for p in parts if p.name != spoilt], rows=6, width=8)
    if spoilt.endswith("shift"):
        changed = [
            Part(p.name, p.dtype, p.shape, b"\x7f") if p.name == spoilt else p for p in parts
        ]
        with pytest.raises(WireError, match="shift"):
            codec.decode(changed, rows=6, width=8)
