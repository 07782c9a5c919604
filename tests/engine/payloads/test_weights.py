"""Shards against the state they were cut from, and against peers that cut them otherwise."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.engine.payloads.weights import Inlet, keep, load_kept, shards
from splitlearn.errors import AuditError, WireError
from splitlearn.wire.tensors import Part, decode, encode

STATE = {
    "layers.0.weight": torch.arange(60.0).reshape(10, 6),
    "layers.0.bias": torch.arange(6.0),
    "layers.1.weight": torch.rand(40, 6),
    "scalar": torch.tensor(3.0),
}


@given(st.integers(1, 2000))
def test_shards_of_any_size_bring_the_state_back(limit: int) -> None:
    inlet = Inlet(STATE)
    cut = shards(STATE, limit_bytes=limit)
    for parts in cut:
        inlet.take(decode(encode(parts)))
        assert len(parts) == 1 or sum(len(p.data) for p in parts) <= limit
    back = inlet.state()
    assert back.keys() == STATE.keys()
    assert all(torch.equal(back[name], STATE[name]) for name in STATE)


def test_nothing_to_send_is_one_empty_shard() -> None:
    assert shards({}) == [()]
    assert Inlet({}).state() == {}


def part(name: str, tensor: torch.Tensor) -> Part:
    (made,) = shards({"x": tensor})[0]
    return Part(name=name, dtype=made.dtype, shape=made.shape, data=made.data)


@pytest.mark.parametrize(
    "parts",
    [
        [part("embeddings.weight", torch.zeros(2, 2))],
        [part("layers.0.bias", torch.zeros(7))],
        [part("layers.0.bias", torch.zeros(6, dtype=torch.float16))],
        [part("layers.0.bias", torch.zeros(6))] * 2,
        [part("layers.0.bias..2", torch.zeros(4))],
        [part("layers.0.bias..0", torch.zeros(4)), part("layers.0.bias..4", torch.zeros(4))],
        [part("layers.0.bias..0", torch.zeros(4)), part("layers.0.bias", torch.zeros(6))],
        [part("layers.0.bias..x", torch.zeros(6))],
    ],
    ids=["foreign", "shape", "dtype", "twice", "gap", "too many", "mixed", "no number"],
)
def test_other_weights_than_the_agreed_ones_are_refused(parts: list[Part]) -> None:
    inlet = Inlet(STATE)
    for each in parts[:-1]:
        inlet.take((each,))
    with pytest.raises(WireError, match="the peer sent"):
        inlet.take((parts[-1],))


def test_missing_weights_are_named() -> None:
    inlet = Inlet(STATE)
    inlet.take((part("layers.0.bias..0", torch.zeros(3)),))
    with pytest.raises(WireError, match=r"layers\.0\.bias"):
        inlet.state()


def test_weights_are_kept_under_their_digest(tmp_path: Path) -> None:
    assert load_kept(tmp_path, name="d") is None
    keep(tmp_path / "deep", STATE, name="d")
    kept = load_kept(tmp_path / "deep", name="d")
    assert kept is not None
    assert all(torch.equal(kept[name], STATE[name]) for name in STATE)
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="free space"):
        keep(tmp_path / "file", STATE, name="d")
