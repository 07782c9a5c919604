"""What is said beside the frames, on a stream and a connection of its own: ack, ping, pong, bye.

    msgpack ["ack", taken] | ["ping", number] | ["pong", number] | ["bye", reason or nil]
            | ["probe", number, wanted, zeros] | ["probed", number, zeros]

An ack gives credit back, a ping asks for a sign of life, a bye ends the conversation: without a
reason all is well, with one it is an abort and the sentence is for the peer's people. A probe measures
the link before a run: so many zeros there, so many back, and nothing but zeros. Bytes in, values out;
no I/O.
"""

from typing import Annotated

import msgspec

from splitlearn.channel.handshake import MAX_SENTENCE_CHARACTERS, quoted
from splitlearn.errors import WireError
from splitlearn.wire.limits import MAX_SEQUENCE

__all__ = [
    "MAX_CONTROL_BYTES",
    "MAX_ZEROS",
    "Ack",
    "Bye",
    "Control",
    "Ping",
    "Pong",
    "Probe",
    "Probed",
    "decode",
    "encode",
]

# 2 KiB: a bye with the longest sentence, 400 characters of up to 4 bytes.
MAX_CONTROL_BYTES = 2 * 2**10

# 16 KiB: one TLS record of a probe, so that a few dozen of them tell a bandwidth.
MAX_ZEROS = 16 * 2**10

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


class Probe(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="probe"):
    """Answer with `wanted` zeros. `zeros` are there to take time."""

    number: Count
    wanted: Annotated[int, msgspec.Meta(ge=0, le=MAX_ZEROS)]
    zeros: Annotated[bytes, msgspec.Meta(max_length=MAX_ZEROS)]


class Probed(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="probed"
):
    """The answer to a Probe of the same number."""

    number: Count
    zeros: Annotated[bytes, msgspec.Meta(max_length=MAX_ZEROS)]


Control = Ack | Ping | Pong | Bye | Probe | Probed


def encode(message: Control) -> bytes:
    """One control message as bytes.

    >>> encode(Ack(taken=3)).hex()
    '92a361636b03'
    """
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Control:
    """One control message from bytes. Raises WireError."""
    limit = MAX_CONTROL_BYTES
    if data[1:7] in _PROBE:
        limit += MAX_ZEROS
    if len(data) > limit:
        raise WireError(f"a control message has {len(data)} bytes; expected at most {limit}")
    try:
        message = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"a control message is not legal: {quoted(str(error))}") from None
    if isinstance(message, Probe | Probed) and any(message.zeros):
        raise WireError("a probe carries something else than zeros")
    return message


# How the tags of a probe and of its answer begin: msgpack strings of 5 and 6 bytes.
_PROBE = (b"\xa5probe", b"\xa6probe")
_DECODER = msgspec.msgpack.Decoder(Control)
