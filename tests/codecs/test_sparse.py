import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.base import Codec, to_part
from splitlearn.codecs.sparse import RandomK, TopK
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_FRAME_BYTES

FINITE = st.floats(min_value=-(2.0**120), max_value=2.0**120, width=32)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FINITE)
BOTH = [TopK("topk-0.3", share=0.3), RandomK("randk-0.3", share=0.3)]


def name(codec: Codec) -> str:
    return codec.name


def through(codec: Codec, x_ND: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_ND), rows=x_ND.shape[0], width=x_ND.shape[1])


@given(ROWS)
def test_top_k_keeps_the_largest_of_each_row_and_nothing_else(x: np.ndarray) -> None:
    x_ND = torch.from_numpy(x)
    kept = max(1, round(0.3 * x_ND.shape[1]))
    y_ND = through(BOTH[0], x_ND)
    assert int((y_ND != 0).sum(dim=1).max()) <= kept
    lost_N = (x_ND - y_ND).abs().double().amax(dim=1)
    if kept < x_ND.shape[1]:
        next_N = x_ND.abs().double().sort(dim=1, descending=True).values[:, kept]
        largest = float(x_ND.abs().max())
        bound_N = torch.maximum(next_N, x_ND.abs().double().amax(dim=1) * 2**-11)
        assert bool((lost_N <= bound_N + largest * 2.0**-38 + 2.0**-140).all())


def test_top_k_of_all_is_float16() -> None:
    x_ND = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(through(TopK("topk-1", share=1.0), x_ND), x_ND, rtol=2**-11, atol=0)


def test_random_k_keeps_the_same_columns_of_all_rows_of_a_message_and_others_of_the_next() -> None:
    codec = RandomK("randk-0.25", share=0.25)
    generator = torch.Generator().manual_seed(0)
    kept = set()
    for _ in range(4):
        x_ND = torch.randn(6, 64, generator=generator)
        y_ND = through(codec, x_ND)
        columns = y_ND.any(dim=0)
        assert int(columns.sum()) == 16
        assert torch.allclose(y_ND[:, columns], x_ND[:, columns], rtol=2**-11, atol=1e-9)
        kept.add(tuple(columns.tolist()))
    assert len(kept) == 4


def test_the_columns_of_a_seed_are_the_same_in_every_version() -> None:
    codec = RandomK("randk-0.25", share=0.25)
    values = torch.ones(1, 4)
    seed = to_part("seed", torch.arange(8, dtype=torch.uint8))
    parts = (
        to_part("x", values.to(torch.float16)),
        to_part("shift", torch.tensor([0], dtype=torch.int8)),
        seed,
    )
    assert torch.nonzero(codec.decode(parts, rows=1, width=16)[0]).flatten().tolist() == COLUMNS


COLUMNS = [1, 4, 9, 14]


@pytest.mark.parametrize("codec", BOTH, ids=name)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (2, 129)])
def test_parts_are_those_the_layout_declares(codec: Codec, shape: tuple[int, int]) -> None:
    x_ND = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    parts = codec.encode(x_ND)
    layout = codec.layout(rows=shape[0], width=shape[1])
    assert [(p.name, p.dtype, p.shape) for p in parts] == list(layout)
    assert through(codec, x_ND).shape == shape


@pytest.mark.parametrize("codec", BOTH, ids=name)
def test_the_same_rows_give_the_same_bytes_however_they_lie(codec: Codec) -> None:
    x_ND = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    assert codec.encode(x_ND.T.contiguous().T) == codec.encode(x_ND)


@pytest.mark.parametrize("bits", [[0b0], [0b111], [0b100000011]])
def test_a_mask_that_keeps_another_number_or_reaches_behind_a_row_is_refused(
    bits: list[int],
) -> None:
    codec = TopK("topk-0.3", share=0.3)
    x, shift, _ = codec.encode(torch.ones(1, 8))
    data = np.array(bits, "<u2").view(np.uint8)[: 1 if bits[0] < 256 else 2]
    at = to_part("at", torch.from_numpy(data.reshape(1, -1).copy()))
    with pytest.raises(WireError):
        codec.decode((x, shift, at), rows=1, width=8)


def test_bits_behind_the_end_of_a_row_are_refused() -> None:
    codec = TopK("topk-0.4", share=0.4)
    x, shift, _ = codec.encode(torch.ones(1, 5))
    at = to_part("at", torch.tensor([[0b00100001]], dtype=torch.uint8))
    with pytest.raises(WireError, match="does not keep 2"):
        codec.decode((x, shift, at), rows=1, width=5)


@pytest.mark.parametrize("codec", BOTH, ids=name)
def test_rows_or_width_other_than_agreed_are_refused(codec: Codec) -> None:
    parts = codec.encode(torch.ones(3, 12))
    for rows, width in ((4, 12), (3, 18), (MAX_FRAME_BYTES, 2)):
        with pytest.raises(WireError):
            codec.decode(parts, rows=rows, width=width)
