import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import WireError
from splitlearn.manifest import Summons, parse_summons

GOOD = Summons(run="tongues", number=3, address="hub.example:7443", deadline_s=600.0)


def test_a_summons_comes_back_as_it_was() -> None:
    assert parse_summons(GOOD.encoded) == GOOD


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": "../../etc"},
        {"run": ""},
        {"number": -1},
        {"address": "hub example"},
        {"deadline_s": 0},
        {"deadline_s": 1e9},
        {"settings": "/etc/passwd"},
    ],
)
def test_what_is_no_summons_is_refused(wrong: dict[str, object]) -> None:
    data = msgspec.json.encode({**msgspec.to_builtins(GOOD), **wrong})
    with pytest.raises(WireError, match="not one of ours"):
        parse_summons(data)


def test_a_summons_has_its_size() -> None:
    with pytest.raises(WireError, match="4096 at most"):
        parse_summons(GOOD.encoded + b" " * 5_000)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_summons_or_refused(data: bytes) -> None:
    try:
        parse_summons(data)
    except WireError:
        return
