"""Rows at the door, against what is none and against codecs that write something else."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from splitlearn.codecs import build
from splitlearn.codecs.base import Identity
from splitlearn.errors import RefusedError
from splitlearn.gate.rows import (
    check_arguments,
    check_rows,
    error_of,
    read_back,
    rows_of,
    same_bits,
)
from splitlearn.policy import Private
from splitlearn.roles import Kind, Role
from splitlearn.wire.messages import StepTensor
from splitlearn.wire.tensors import Part


@pytest.mark.parametrize(
    ("kind", "tensor", "codec", "parts"),
    [
        (Kind.ACTIVATION, torch.zeros(1, 1), None, None),
        (Kind.ACTIVATION, None, None, ()),
        (Kind.WEIGHTS, torch.zeros(1, 1), Identity(), None),
        (Kind.WEIGHTS, None, None, None),
        (Kind.FINISH, None, None, ()),
        (Kind.IDS, None, None, None),
        (Kind.IDS, None, None, ()),
    ],
)
def test_a_message_with_more_or_less_than_its_kind_carries_is_refused(
    kind: Kind, tensor: Tensor | None, codec: Identity | None, parts: tuple[Part, ...] | None
) -> None:
    with pytest.raises(RefusedError, match="carries") as refused:
        check_arguments(kind, tensor=tensor, codec=codec, parts=parts, ids=None)
    assert refused.value.rule == "content.arguments"


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3), torch.zeros(1, 2, 3), torch.zeros(2, 2, dtype=torch.long)]
)
def test_what_is_no_rows_of_floats_is_refused(tensor: Tensor) -> None:
    with pytest.raises(RefusedError, match="no hidden state"):
        rows_of(tensor)


def test_rows_share_memory_where_they_can_and_lose_their_graph() -> None:
    x_ND = torch.rand(2, 3, requires_grad=True)
    assert np.shares_memory(rows_of(x_ND), x_ND.detach().numpy())
    assert rows_of(torch.ones(2, 2, dtype=torch.bfloat16)).dtype == np.float32


def test_same_bits_tells_zeros_apart_and_takes_a_nan_for_itself() -> None:
    zero, other = np.zeros((1, 2), np.float32), -np.zeros((1, 2), np.float32)
    nan = np.full((1, 2), np.nan, np.float32)
    assert same_bits(zero, zero.copy())
    assert not same_bits(zero, other)
    assert same_bits(nan, nan.copy())


@pytest.mark.parametrize("name", ["identity", "fp16", "int8", "int8+zstd"])
def test_what_a_codec_wrote_reads_back_as_the_peer_will_read_it(name: str) -> None:
    codec = build(name)
    x_ND = torch.randn(5, 4)
    parts = codec.encode(x_ND)
    expected = codec.decode(parts, rows=5, width=4).numpy()
    assert same_bits(read_back(parts, codec=codec, rows=5, columns=4), expected)


class Liar(Identity):
    """Declares one thing and writes another."""

    def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
        return (*super().encode(x_ND), *super().encode(x_ND))

    def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> Tensor:
        return super().decode(parts[:1], rows=rows, width=width)


def test_parts_that_a_codec_does_not_declare_are_refused() -> None:
    parts = Liar().encode(torch.zeros(2, 2))
    with pytest.raises(RefusedError, match="declares"):
        read_back(parts, codec=Liar(), rows=2, columns=2)


def test_what_cannot_be_read_back_is_refused() -> None:
    codec = build("int8+zstd")
    (part,) = codec.encode(torch.rand(2, 2))
    broken = Part(name=part.name, dtype=part.dtype, shape=(3,), data=b"abc")
    with pytest.raises(RefusedError, match="read back"):
        read_back((broken,), codec=codec, rows=2, columns=2)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_the_error_is_relative_whatever_the_scale(scale: float) -> None:
    x_ND = np.full((4, 8), scale, np.float32)
    assert error_of(x_ND * np.float32(0.75), x_ND) == pytest.approx(0.25, rel=1e-3)
    assert error_of(x_ND, x_ND) == 0


def test_an_error_against_nothing_is_a_number_too() -> None:
    nothing_ND = np.zeros((2, 2), np.float32)
    assert error_of(nothing_ND, nothing_ND) == 0
    assert error_of(nothing_ND + 1, nothing_ND) == 1
    assert error_of(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)) == 0


@pytest.mark.parametrize(
    ("lengths", "width", "passes"), [((7, 7), 2, True), ((2, 2), 2, True), ((7, 1), 2, False)]
)
def test_of_a_text_gone_on_with_the_new_tokens_are_compared(
    lengths: tuple[int, ...], width: int, passes: bool
) -> None:
    private = Private(ids=np.array([[3, 4], [5, 6]]), labels=(), lengths=(2, 2))
    meta = StepTensor(0, 0, 1, "generate", width, False, lengths, 0)
    x_ND = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).numpy()
    judged = {"role": Role.TRUSTED, "kind": Kind.ACTIVATION, "private": private, "coded": False}
    if passes:
        check_rows(x_ND, meta=meta, **judged)
        with pytest.raises(RefusedError, match="the tensor has 3 rows where the batch has 4"):
            check_rows(x_ND[:3], meta=meta, **judged)
        return
    with pytest.raises(RefusedError) as refused:
        check_rows(x_ND, meta=meta, **judged)
    assert refused.value.rule == "content.lengths"
