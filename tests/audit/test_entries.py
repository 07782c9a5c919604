import msgspec
import pytest

from splitlearn.audit.entries import RECORD_VERSION, Entry, PartShape, Party
from splitlearn.roles import Role
from splitlearn.wire.tensors import Part


def test_a_shape_holds_no_value() -> None:
    shape = PartShape.of(Part("x", "I8", (2, 3), b"secret"))
    assert (shape.data_bytes, "secret" in repr(shape)) == (6, False)
    assert PartShape.before_encoding((2, 3)).data_bytes == 24


def test_every_record_begins_with_the_version_and_takes_no_unknown_field() -> None:
    assert Entry().v == RECORD_VERSION
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"id": "spiffe://a", "role": "trusted", "more": 1}, Party)
    assert msgspec.convert({"id": "spiffe://a", "role": "trusted"}, Party).role is Role.TRUSTED
