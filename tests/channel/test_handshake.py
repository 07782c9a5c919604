"""HELLO, ACK and ATTACH as bytes; what is not one of them is refused."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.channel import handshake
from splitlearn.channel.handshake import Attach, Hello, Refused, Signed, VersionError, Welcome
from splitlearn.errors import PeerError, WireError
from splitlearn.roles import Role

HELLO = Hello(
    federation="fed.example",
    party="alpha",
    role=Role.TRUSTED,
    expects="spiffe://fed.example/party/beta/role/compute",
    run="demo",
    incarnation="0" * 32,
    listener="",
    received=0,
    window=8,
    nonce=bytes(16),
)
WELCOME = Welcome(
    federation="fed.example",
    party="beta",
    role=Role.COMPUTE,
    run="demo",
    incarnation="1" * 32,
    received=7,
    window=8,
    nonce=bytes(16),
    link=bytes(range(16)),
    certificate=b"der",
)


@dataclass
class Case:
    field: str
    value: object


def test_everything_comes_back_as_it_went() -> None:
    assert handshake.decode_hello(handshake.encode_hello(HELLO)) == HELLO
    assert handshake.decode_body(handshake.encode_body(WELCOME)) == WELCOME
    for ack in (Signed(b"body", b"signature"), Refused("name", "not here")):
        assert handshake.decode_ack(handshake.encode_ack(ack)) == ack
    attach = Attach(bytes(16))
    assert handshake.decode_attach(handshake.encode_attach(attach)) == attach


def test_a_hello_is_these_bytes() -> None:
    assert handshake.encode_hello(HELLO).startswith(
        b"SPLH\x01\x9a\xabfed.example\xa5alpha\xa7trusted"
    )


def test_an_attach_is_these_bytes() -> None:
    expected = b"SPLC\x01\x91\xc4\x10" + bytes(16)
    assert handshake.encode_attach(Attach(bytes(16))) == expected


def test_another_version_is_named_without_reading_further() -> None:
    with pytest.raises(VersionError, match="the peer speaks protocol 9, we speak 1"):
        handshake.decode_hello(b"SPLH\x09 what version nine says")
    assert issubclass(VersionError, PeerError)


@pytest.mark.parametrize(
    "case",
    [
        Case("party", "Alpha"),
        Case("party", "a/b"),
        Case("role", "king"),
        Case("expects", "x" * 200),
        Case("run", "no spaces"),
        Case("incarnation", ""),
        Case("listener", "zz"),
        Case("received", -1),
        Case("received", 2**60),
        Case("window", 0),
        Case("window", 1000),
        Case("nonce", b"short"),
    ],
    ids=lambda case: f"{case.field}={case.value!r}"[:40],
)
def test_a_hello_out_of_bounds_is_a_wire_error(case: Case) -> None:
    values = msgspec.to_builtins(HELLO, builtin_types=(bytes,))
    values[Hello.__struct_fields__.index(case.field)] = case.value
    data = b"SPLH\x01" + msgspec.msgpack.encode(values)
    with pytest.raises(WireError, match="HELLO is not legal"):
        handshake.decode_hello(data)


def test_a_long_hello_is_refused_by_its_length() -> None:
    with pytest.raises(WireError, match="at most 20480"):
        handshake.decode_hello(b"SPLH\x01" + bytes(30_000))


def test_one_word_is_not_another() -> None:
    with pytest.raises(WireError, match="no ACK"):
        handshake.decode_ack(handshake.encode_hello(HELLO))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    for head in (b"", b"SPLH\x01", b"SPLA\x01", b"SPLC\x01"):
        for decode in (
            handshake.decode_hello,
            handshake.decode_ack,
            handshake.decode_attach,
            handshake.decode_body,
        ):
            try:
                decode(head + data)
            except PeerError:
                continue


def test_the_signed_message_binds_hello_and_body() -> None:
    message = handshake.signed_message(b"hello", body=b"body")
    assert message != handshake.signed_message(b"hellO", body=b"body")
    assert message != handshake.signed_message(b"hello", body=b"bodY")
    assert message.startswith(b"splitlearn ack v1\0")


def test_a_quoted_sentence_is_one_bounded_printable_line() -> None:
    assert handshake.quoted("a\r\nb\x00" + "c" * 1000) == "a??b?" + "c" * 395
