"""Rows at the door, against what is none and against codecs that write something else."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace
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
    texts_beside,
)
from splitlearn.policy import Private
from splitlearn.roles import Kind, Role
from splitlearn.wire.messages import Memory, StepTensor
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


def beside(*, ids: bool = True, rows: int = 9) -> tuple[np.ndarray, StepTensor, Private]:
    """Nine rows of a memory, and eight of a decoder."""
    generator = np.random.default_rng(1)
    x_ND = generator.standard_normal((rows + 8, 16)).astype(np.float32)
    memory = Private(ids=generator.integers(5, 900, (2, 5)), labels=(), lengths=(5, 4))
    own = Private(
        ids=generator.integers(5, 900, (2, 4)),
        labels=(generator.integers(5, 900, (2, 4)),),
        lengths=(4, 4),
        memory=memory if ids else None,
        watched=False,
    )
    meta = StepTensor(0, 0, 1, "train", 4, True, (4, 4), 0, Memory(5, (5, 4)))
    return x_ND, meta, own


JUDGED = {"role": Role.TRUSTED, "kind": Kind.ACTIVATION, "coded": False}


def test_rows_of_two_texts_are_each_held_against_their_own_ids() -> None:
    x_ND, meta, private = beside()
    check_rows(x_ND, meta=meta, private=private, **JUDGED)
    assert private.memory is not None
    packed = private.memory.ids[np.arange(5) < np.array([[5], [4]])]
    for at, ids in ((slice(0, 9), packed), (slice(9, 17), private.ids.reshape(-1))):
        leaking_ND = x_ND.copy()
        leaking_ND[at, 3] = 0.3 * ids + 0.7
        with pytest.raises(RefusedError) as refused:
            check_rows(leaking_ND, meta=meta, private=private, **JUDGED)
        assert refused.value.rule == "content.ids"


def test_of_a_memory_real_tokens_travel_where_a_text_begins() -> None:
    x_ND, meta, private = beside()
    meta = replace(meta, phase="generate", packed=False)
    check_rows(x_ND, meta=meta, private=private, **JUDGED)
    x_ND[:9, 3] = private.memory.ids[np.arange(5) < np.array([[5], [4]])] * 0.3  # type: ignore[union-attr]
    with pytest.raises(RefusedError) as refused:
        check_rows(x_ND, meta=meta, private=private, **JUDGED)
    assert refused.value.rule == "content.ids"


def test_what_a_decoder_has_to_say_is_not_among_its_rows() -> None:
    x_ND, meta, private = beside()
    x_ND[9:, 7] = private.labels[0].reshape(-1)
    with pytest.raises(RefusedError) as refused:
        check_rows(x_ND, meta=meta, private=private, **(JUDGED | {"coded": True}))
    assert refused.value.rule == "content.labels"


@pytest.mark.parametrize(
    ("ids", "rows", "changes", "rule"),
    [
        (False, 9, {}, "content.batch"),
        (True, 9, {"memory": None}, "content.batch"),
        (True, 9, {"memory": Memory(5, (4, 5))}, "content.lengths"),
        (True, 9, {"memory": Memory(6, (5, 4))}, "content.batch"),
        (True, 9, {"memory": Memory(5, ())}, "content.lengths"),
        (True, 8, {}, "content.rows"),
        (True, 10, {}, "content.rows"),
    ],
    ids=["no ids", "no rows", "lengths", "width", "no lengths", "a row too few", "too many"],
)
def test_rows_of_a_memory_come_with_its_ids_and_lengths(
    ids: bool, rows: int, changes: dict[str, Memory | None], rule: str
) -> None:
    x_ND, meta, private = beside(ids=ids, rows=rows)
    with pytest.raises(RefusedError) as refused:
        check_rows(x_ND, meta=replace(meta, **changes), private=private, **JUDGED)
    assert refused.value.rule == rule


def test_the_texts_of_a_memory_count_as_long_as_they_are() -> None:
    _, meta, private = beside()
    assert texts_beside(meta, None) == (5, 4)
    assert texts_beside(meta, private) == (5, 4, 5, 4)
    assert texts_beside(replace(meta, memory=None), None) == ()
