import msgspec
import pytest

from splitlearn.wire.messages import META
from splitlearn.wire.pairs import Pairing, Samples, Want
from splitlearn.wire.terms import Meta


@pytest.mark.parametrize("kind", [Pairing, Samples, Want])
def test_each_is_the_metadata_of_one_kind(kind: type[Meta]) -> None:
    assert list(META.values()).count(kind) == 1


@pytest.mark.parametrize(
    "want",
    [
        Want(1, "train", ()),
        Want(1, "train", (0,) * 4_097),
        Want(1, "train", (-1,)),
        Want(1, "generate", (0,)),  # type: ignore[arg-type]
    ],
    ids=lambda want: f"{want.phase} {len(want.samples)}",
)
def test_a_wish_out_of_its_bounds_is_refused(want: Want) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(want), type=Want)
    most = Want(1, "train", (0,) * 4_096)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(most), type=Want) == most
