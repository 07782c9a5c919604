"""Control messages as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.channel import control
from splitlearn.channel.control import MAX_ZEROS, Ack, Bye, Ping, Pong, Probe, Probed
from splitlearn.errors import WireError


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (Ack(3), b"\x92\xa3ack\x03"),
        (Ping(1), b"\x92\xa4ping\x01"),
        (Pong(1), b"\x92\xa4pong\x01"),
        (Bye(None), b"\x92\xa3bye\xc0"),
        (Probe(1, 2, bytes(3)), b"\x94\xa5probe\x01\x02\xc4\x03\x00\x00\x00"),
        (Probed(1, bytes(2)), b"\x93\xa6probed\x01\xc4\x02\x00\x00"),
        (Bye("disk full"), b"\x92\xa3bye\xa9disk full"),
    ],
    ids=str,
)
def test_each_message_is_these_bytes_and_comes_back(message: control.Control, data: bytes) -> None:
    assert control.encode(message) == data
    assert control.decode(data) == message


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"\x92\xa3ack\xff", b"\x92\xa3ack\x03\x00", b"\x92\xa4kick\x03"]
)
def test_anything_else_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError, match="not legal"):
        control.decode(data)


def test_a_long_control_message_is_refused_by_its_length() -> None:
    with pytest.raises(WireError, match="at most 2048"):
        control.decode(bytes(3000))


def test_a_probe_may_be_longer_and_carries_nothing_but_zeros() -> None:
    largest = control.encode(Probe(1, MAX_ZEROS, bytes(MAX_ZEROS)))
    assert control.decode(largest) == Probe(1, MAX_ZEROS, bytes(MAX_ZEROS))
    for message in (Probe(1, 0, bytes(MAX_ZEROS + 1)), Probe(1, MAX_ZEROS + 1, b"")):
        with pytest.raises(WireError, match="not legal"):
            control.decode(control.encode(message))
    with pytest.raises(WireError, match="at most 18432"):
        control.decode(control.encode(Probed(1, bytes(30_000))))
    for hiding in (Probe(1, 0, b"\x00text"), Probed(1, b"\x00\x01")):
        with pytest.raises(WireError, match="something else than zeros"):
            control.decode(control.encode(hiding))


def test_a_reason_is_bounded() -> None:
    data = b"\x92\xa3bye\xda\x03\xe8" + b"x" * 1000
    with pytest.raises(WireError):
        control.decode(data)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_nothing_but_wire_errors(data: bytes) -> None:
    try:
        control.decode(data)
    except WireError:
        return
