import hashlib

import pytest

from splitlearn.errors import WireError
from splitlearn.wire.messages import Samples
from splitlearn.wire.samples import hash_of, pack, unpack
from splitlearn.wire.tensors import Part

KEY = "7f" * 32
TRAIN = tuple(sorted(hash_of(str(i), naming=KEY) for i in range(5)))
HELD = tuple(sorted(hash_of(str(i), naming=KEY) for i in range(5, 7)))


def test_a_hash_is_keyed_blake2b() -> None:
    found = hashlib.blake2b(b"7", key=bytes.fromhex(KEY), digest_size=16, person=b"pair sample")
    assert hash_of("7", naming=KEY) == found.digest()
    assert hash_of("7", naming="00" * 32) != found.digest()


@pytest.mark.parametrize("hashes", [(TRAIN, HELD), (TRAIN, ()), ((), HELD), ((), ())])
def test_what_is_packed_is_read_back(
    hashes: tuple[tuple[bytes, ...], tuple[bytes, ...]],
) -> None:
    meta = Samples(len(hashes[0]), len(hashes[1]))
    assert unpack(pack(hashes), meta=meta) == hashes


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (pack((TRAIN[:4], HELD)), "came as"),
        (pack((TRAIN, ())), "came as"),
        (pack(((*TRAIN[:4], TRAIN[3]), HELD)), "repeat"),
        (pack((TRAIN[::-1], HELD)), "ascend"),
        (pack((TRAIN, TRAIN[:2])), "both to train on and held out"),
        ((Part("train", "I8", (5, 16), b"0" * 80), *pack(((), HELD))), "came as"),
    ],
)
def test_anything_else_is_refused(parts: tuple[Part, ...], says: str) -> None:
    with pytest.raises(WireError, match=says):
        unpack(parts, meta=Samples(5, 2))
