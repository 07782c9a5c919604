import msgspec
import pytest

from splitlearn.wire.messages import META
from splitlearn.wire.rounds import Ask, Enlist, Ids, Report, Round
from splitlearn.wire.terms import Meta

ROUND = Round("t", "c" * 32, "f" * 64, "0" * 64, 2, 2**20, "a" * 64, 32, 128, 0.15, 1, 640)


@pytest.mark.parametrize("kind", [Round, Enlist, Ask, Ids, Report])
def test_each_is_the_metadata_of_one_kind(kind: type[Meta]) -> None:
    assert list(META.values()).count(kind) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocabulary": 2**20 + 1},
        {"vocabulary": 1},
        {"vocabulary_digest": "a" * 63},
        {"examples": 4_097},
        {"width": 0},
        {"masked": 1.5},
        {"run": "two words"},
    ],
    ids=str,
)
def test_a_round_out_of_its_bounds_is_refused(wrong: dict[str, object]) -> None:
    raw = msgspec.msgpack.encode(msgspec.structs.replace(ROUND, **wrong))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=Round)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ROUND), type=Round) == ROUND
