"""What is said beside the frames, on a stream and a connection of its own: ack, ping, pong, bye.

    msgpack ["ack", taken] | ["ping", number] | ["pong", number] | ["bye", reason or nil]

An ack gives credit back, a ping asks for a sign of life, a bye ends the conversation: without a
reason all is well, with one it is an abort and the sentence is for the peer's people. Bytes in,
values out; no I/O.
"""

from typing import Annotated

import msgspec

from splitlearn.channel.handshake import MAX_SENTENCE_CHARACTERS, quoted
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_SEQUENCE

__all__ = ["MAX_CONTROL_BYTES", "Ack", "Bye", "Control", "Ping", "Pong", "decode", "encode"]

# 2 KiB: a bye with the longest sentence, 400 characters of up to 4 bytes.
MAX_CONTROL_BYTES = 2 * 2**10

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]


class Ack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ack"):
    """`taken` frames in all have been taken out of the mailbox since the incarnation began."""

    taken: Count


class Ping(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ping"):
    """Answer with a Pong of the same number."""

    number: Count


class Pong(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="pong"):
    """The answer to a Ping."""

    number: Count


class Bye(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="bye"):
    """The last word. With a reason: an abort."""

    reason: Annotated[str, msgspec.Meta(max_length=MAX_SENTENCE_CHARACTERS)] | None


Control = Ack | Ping | Pong | Bye


def encode(message: Control) -> bytes:
    """One control message as bytes.

    >>> encode(Ack(taken=3)).hex()
    '92a361636b03'
    """
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Control:
    """One control message from bytes. Raises WireError."""
    if len(data) > MAX_CONTROL_BYTES:
        raise WireError(
            f"a control message has {len(data)} bytes; expected at most {MAX_CONTROL_BYTES}"
        )
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"a control message is not legal: {quoted(str(error))}") from None


_DECODER = msgspec.msgpack.Decoder(Control)
