"""The first words on a link: HELLO from whoever dialled, ACK from whoever listens, then ATTACH.

    "SPLH" | version u8 | msgpack [federation, party, role, expects, run, incarnation, listener,
                                   received, window, nonce]                       dialler, data stream
    "SPLA" | version u8 | msgpack ["welcome", body, signature]
                        | msgpack ["refused", code, sentence]                     listener, data stream
    "SPLC" | version u8 | msgpack [link]                                          dialler, control stream
    body = msgpack [federation, party, role, run, incarnation, received, window, nonce, link, certificate]

TLS proves the dialler (the listener reads its certificate from the connection) and checks the
listener's chain and name; the signature, over the HELLO's hash with its fresh nonce and the body,
proves that the listener's key answered this very HELLO. Bytes in, values out; no I/O.
"""

import hashlib
from typing import Annotated, Literal

import msgspec

from splitlearn.errors import PeerError, WireError
from splitlearn.roles import Role
from splitlearn.wire.limits import MAX_SEQUENCE, PROTOCOL

__all__ = [
    "MAX_HANDSHAKE_BYTES",
    "MAX_SENTENCE_CHARACTERS",
    "Attach",
    "Code",
    "Hello",
    "Refused",
    "Signed",
    "VersionError",
    "Welcome",
    "decode_ack",
    "decode_attach",
    "decode_body",
    "decode_hello",
    "encode_ack",
    "encode_attach",
    "encode_body",
    "encode_hello",
    "quoted",
    "signed_message",
]

# 20 KiB: the largest certificate that identity reads (16 KiB) and some names.
MAX_HANDSHAKE_BYTES = 20 * 2**10
# characters: a refusal is one sentence.
MAX_SENTENCE_CHARACTERS = 400

Party = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?\Z")]
Federation = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.-]{1,64}\Z")]
Uri = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.:/-]{1,160}\Z")]
Incarnation = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
# Empty where a dialler does not know it yet.
MaybeIncarnation = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
# Empty where whoever dials works on whatever the listener asks for.
Run = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._+-]{0,63})?\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
Window = Annotated[int, msgspec.Meta(ge=1, le=256)]
Token = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]

# Why a HELLO was refused. "busy" alone may pass by itself.
Code = Literal["protocol", "identity", "name", "run", "closed", "busy"]


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who dials, whom it means to reach, and how far it has come.

    expects: URI of the party that was dialled. incarnation: drawn anew by every new process.
    listener: the incarnation it was speaking to before, empty at first. received: frames that came.
    window: frames it accepts untaken.
    """

    federation: Federation
    party: Party
    role: Role
    expects: Uri
    run: Run
    incarnation: Incarnation
    listener: MaybeIncarnation
    received: Count
    window: Window
    nonce: Token


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The listener's half of the same; `link` is what the control stream has to show."""

    federation: Federation
    party: Party
    role: Role
    run: Run
    incarnation: Incarnation
    received: Count
    window: Window
    nonce: Token
    link: Token
    certificate: Annotated[bytes, msgspec.Meta(max_length=16 * 2**10)]


class Signed(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="welcome"
):
    """A Welcome's bytes and the signature over `signed_message`."""

    body: Annotated[bytes, msgspec.Meta(max_length=18 * 2**10)]
    signature: Annotated[bytes, msgspec.Meta(max_length=256)]


class Refused(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="refused"
):
    """Why the listener will not speak to this dialler."""

    code: Code
    sentence: Annotated[str, msgspec.Meta(max_length=MAX_SENTENCE_CHARACTERS)]


class Attach(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which link a control stream belongs to."""

    link: Token


class VersionError(PeerError):
    """The peer speaks another version of the protocol; nothing after the version was read."""


def encode_hello(hello: Hello) -> bytes:
    """HELLO as bytes; a second call with the same value gives the same bytes."""
    return _head(_HELLO) + msgspec.msgpack.encode(hello)


def decode_hello(data: bytes) -> Hello:
    """Raises VersionError or WireError."""
    rest = _rest(data, magic=_HELLO, word="HELLO")
    try:
        return _HELLO_DECODER.decode(rest)
    except msgspec.MsgspecError as error:
        raise _illegal("HELLO", error) from None


def encode_ack(ack: Signed | Refused) -> bytes:
    """ACK as bytes."""
    return _head(_ACK) + msgspec.msgpack.encode(ack)


def decode_ack(data: bytes) -> Signed | Refused:
    """Raises VersionError or WireError."""
    rest = _rest(data, magic=_ACK, word="ACK")
    try:
        return _ACK_DECODER.decode(rest)
    except msgspec.MsgspecError as error:
        raise _illegal("ACK", error) from None


def encode_attach(attach: Attach) -> bytes:
    """ATTACH as bytes."""
    return _head(_ATTACH) + msgspec.msgpack.encode(attach)


def decode_attach(data: bytes) -> Attach:
    """Raises VersionError or WireError."""
    rest = _rest(data, magic=_ATTACH, word="ATTACH")
    try:
        return _ATTACH_DECODER.decode(rest)
    except msgspec.MsgspecError as error:
        raise _illegal("ATTACH", error) from None


def encode_body(welcome: Welcome) -> bytes:
    """The bytes that are signed and sent as `Signed.body`."""
    return msgspec.msgpack.encode(welcome)


def decode_body(body: bytes) -> Welcome:
    """Raises WireError. Check the signature with the certificate in it before believing the rest."""
    try:
        return _BODY_DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise _illegal("ACK's body", error) from None


def signed_message(hello: bytes, *, body: bytes) -> bytes:
    """What a listener signs: a fixed context, the hash of the HELLO's bytes, and the body."""
    return b"splitlearn ack v1\0" + hashlib.sha256(hello).digest() + body


def quoted(sentence: str) -> str:
    """A peer's words made fit for one line of ours: printable and bounded.

    >>> quoted("no\\nsuch\\x1b[2Jrun")
    'no?such?[2Jrun'
    """
    kept = sentence[:MAX_SENTENCE_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in kept)


_HELLO = b"SPLH"
_ACK = b"SPLA"
_ATTACH = b"SPLC"
_HEAD_BYTES = 5
_HELLO_DECODER = msgspec.msgpack.Decoder(Hello)
_ACK_DECODER = msgspec.msgpack.Decoder(Signed | Refused)
_ATTACH_DECODER = msgspec.msgpack.Decoder(Attach)
_BODY_DECODER = msgspec.msgpack.Decoder(Welcome)


def _head(magic: bytes) -> bytes:
    return magic + bytes([PROTOCOL])


def _rest(data: bytes, *, magic: bytes, word: str) -> bytes:
    """What follows magic and version, both of which are as they should be."""
    if len(data) > MAX_HANDSHAKE_BYTES:
        raise WireError(f"{word} has {len(data)} bytes; expected at most {MAX_HANDSHAKE_BYTES}")
    if len(data) < _HEAD_BYTES or not data.startswith(magic):
        raise WireError(
            f"the peer began with {len(data)} bytes that are no {word}; is it splitlearn at all?"
        )
    if data[4] != PROTOCOL:
        raise VersionError(
            f"the peer speaks protocol {data[4]}, we speak {PROTOCOL}; both sides have to run the "
            "same version of splitlearn"
        )
    return data[_HEAD_BYTES:]


def _illegal(word: str, error: Exception) -> WireError:
    return WireError(f"the peer's {word} is not legal: {quoted(str(error))}")
