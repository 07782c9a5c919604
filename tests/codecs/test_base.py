import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from splitlearn.codecs.base import Identity, Slot, check, to_part, to_tensor
from splitlearn.errors import WireError
from splitlearn.wire import tensors
from splitlearn.wire.tensors import Part

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=9)


@given(hnp.arrays(np.uint32, SHAPES))
def test_identity_returns_every_float32_bit_pattern_nan_payloads_included(bits: np.ndarray) -> None:
    x_ND = torch.from_numpy(bits.view(np.float32).copy())
    parts = tensors.decode(tensors.encode(Identity().encode(x_ND)))
    y_ND = Identity().decode(parts, rows=x_ND.shape[0], width=x_ND.shape[1])
    assert torch.equal(y_ND.view(torch.int32), x_ND.view(torch.int32))


def test_identity_keeps_negative_zero_denormals_and_extremes() -> None:
    x_ND = torch.tensor([[-0.0, 1e-45, -1e-40, 3.4028234663852886e38, math.pi]])
    y_ND = Identity().decode(Identity().encode(x_ND), rows=1, width=5)
    assert torch.equal(y_ND.view(torch.int32), x_ND.view(torch.int32))
    assert torch.signbit(y_ND[0, 0])


def test_what_identity_returns_shares_no_memory_with_what_it_was_given() -> None:
    x_ND = torch.ones(2, 3)
    y_ND = Identity().decode(Identity().encode(x_ND), rows=2, width=3)
    x_ND.zero_()
    assert torch.equal(y_ND, torch.ones(2, 3))


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    ],
)
def test_every_dtype_survives_the_way_through_the_wire_container(dtype: torch.dtype) -> None:
    x = torch.arange(-3, 3).reshape(2, 3).to(dtype)
    (part,) = tensors.decode(tensors.encode([to_part("a.b", x)]))
    y = to_tensor(part)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    assert torch.equal(y, x)


def test_a_transposed_tensor_is_written_in_its_own_order() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(to_tensor(to_part("x", x.T)), x.T)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_scalars_and_empty_tensors_convert(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    part = to_part("x", x)
    assert part.shape == shape
    assert torch.equal(to_tensor(part), x)


def test_a_gradient_tracking_tensor_converts_without_its_graph() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    assert not to_tensor(to_part("x", x)).requires_grad


LAYOUT = (Slot("x", "F32", (2, 3)), Slot("n", "U8", None))
X = Part(name="x", dtype="F32", shape=(2, 3), data=bytes(24))
N = Part(name="n", dtype="U8", shape=(5,), data=bytes(5))


def test_parts_that_follow_the_layout_pass() -> None:
    check((X, N), LAYOUT)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((), "0 parts where the agreed codec writes 2"),
        ((X,), "1 parts"),
        ((X, N, N), "3 parts"),
        ((N, X), "'n' of U8"),
        ((Part(name="y", dtype="F32", shape=(2, 3), data=bytes(24)), N), "'y'"),
        ((Part(name="x", dtype="I32", shape=(2, 3), data=bytes(24)), N), "of I32"),
        ((Part(name="x", dtype="F32", shape=(3, 2), data=bytes(24)), N), "(3, 2)"),
        ((Part(name="x", dtype="F32", shape=(6,), data=bytes(24)), N), "(6,)"),
        ((Part(name="x", dtype="F32", shape=(2, 3), data=bytes(23)), N), "23 bytes"),
        ((X, Part(name="n", dtype="U8", shape=(5, 1), data=bytes(5))), "any length"),
        ((X, Part(name="n", dtype="U8", shape=(6,), data=bytes(5))), "5 bytes"),
    ],
)
def test_parts_that_leave_the_layout_are_refused(parts: tuple[Part, ...], says: str) -> None:
    with pytest.raises(WireError, match=says.replace("(", r"\(").replace(")", r"\)")):
        check(parts, LAYOUT)


@given(st.integers(1, 5), st.integers(1, 5))
def test_identity_refuses_rows_or_width_other_than_agreed(rows: int, width: int) -> None:
    parts = Identity().encode(torch.zeros(rows, width))
    for other in ((rows + 1, width), (rows, width + 1)):
        with pytest.raises(WireError):
            Identity().decode(parts, rows=other[0], width=other[1])
