"""Bounds of what an offer or a pairing is made of, each at its edge and one step beyond."""

import msgspec
import pytest

from splitlearn.wire.terms import (
    CodecSpec,
    CodecStage,
    Detail,
    LoraSpec,
    Meta,
    OptimiserSpec,
    ScheduleSpec,
    SideSpec,
    TrunkModel,
)

CODECS = CodecSpec("fp32", "fp32", "fp32", "fp32")
LEGAL: list[Meta] = [
    SideSpec((1,) * 64, 1_024),
    LoraSpec(1_024, 1e4, 0.99, ("q",) * 32, 0),
    ScheduleSpec("inverse_sqrt", 0, 10_000_000, 4),
    OptimiserSpec("sgd", 1e9, 0.0, 0.0, 0.0, 0.0),
    CodecStage(10_000_000, CODECS),
    Detail(repeats=True, stages=(CodecStage(1, CODECS),) * 8, clips=True),
    TrunkModel("bert", {f"n{number}": number for number in range(32)}),
]
ILLEGAL: list[Meta] = [
    SideSpec((1,) * 65, 8),
    SideSpec((), 8),
    SideSpec((1, 65_537), 8),
    SideSpec((1,), 1_025),
    SideSpec((1,), 0),
    ScheduleSpec("linear", 0, 10_000_001),
    ScheduleSpec("linear", 0, 10, 5),
    ScheduleSpec("polynomial", 0, 10),  # type: ignore[arg-type]
    OptimiserSpec("adamw", float("nan"), 0.0, 0.0, 0.0, 0.0),
    CodecStage(0, CODECS),
    CodecStage(1, CodecSpec("fp32", "fp32", "fp32", "an arbitrary sentence")),
    Detail(stages=(CodecStage(1, CODECS),) * 9),
    TrunkModel("bert", {f"n{number}": number for number in range(33)}),
    TrunkModel("../bert", {}),
]


@pytest.mark.parametrize("terms", LEGAL, ids=repr)
def test_terms_at_their_bounds_come_back(terms: Meta) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(terms), type=type(terms)) == terms


@pytest.mark.parametrize("terms", ILLEGAL, ids=repr)
def test_terms_beyond_them_are_refused(terms: Meta) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(terms), type=type(terms))
