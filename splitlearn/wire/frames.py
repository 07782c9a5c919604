"""Frames: a message as bytes, and a message from bytes. No I/O, no opinion on whether it is legal now.

    0      4   5   6     8            16          20                  28      28 + M       28 + M + P
    | SPLN | V | K | 0 0 | sequence   | M = meta  | P = payload bytes | meta  | payload    |
    |      |   |   |     | u64be      | u32be     | u64be             |msgpack| safetensors|

V protocol version, K code of the kind. A frame travels as chunks of exactly `CHUNK_BYTES`, the last one
with the rest, and no chunk holds bytes of two frames. The header is judged as soon as the first chunk
is there; only then are further bytes kept, and never more than it announced. Metadata has one spelling:
what doesn't encode back to the same bytes is refused, so nothing can be hidden in it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from splitlearn.errors import WireError
from splitlearn.roles import CODES, KINDS, Kind
from splitlearn.wire.limits import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_META_BYTES,
    MAX_SEQUENCE,
    PROTOCOL,
)
from splitlearn.wire.messages import META, Meta, spelt

__all__ = [
    "BEARS_TENSORS",
    "HEADER_BYTES",
    "MAGIC",
    "Assembler",
    "Frame",
    "chunks",
    "decode",
    "encode",
]

MAGIC = b"SPLN"

# Kinds that carry a tensor container; every other kind has no payload at all.
BEARS_TENSORS = frozenset(
    {Kind.WEIGHTS, Kind.ACTIVATION, Kind.OUTPUT, Kind.GRADIENT, Kind.INPUT_GRADIENT, Kind.IDS}
    | {Kind.SAMPLES}
)

_HEADER = struct.Struct(">4sBBHQIQ")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class Frame:
    """One message: `payload` is a view into `raw`, the whole wire bytes. A repr shows kind and seq."""

    kind: Kind
    seq: int
    meta: Meta = field(repr=False)
    payload: bytes | memoryview = field(repr=False)
    raw: bytes = field(repr=False)


def encode(kind: Kind, *, seq: int, meta: Meta, payload: bytes | memoryview = b"") -> bytes:
    """The wire bytes of one message. WireError if a peer would refuse them.

    >>> from splitlearn.wire.messages import Step
    >>> encode(Kind.SAVED, seq=7, meta=Step(step=50)).hex()
    '53504c4e010b000000000000000000070000000200000000000000009132'
    """
    # Through the decoder and back: an integer in a float's place becomes a float, and what is out of
    # bounds is found here, not at the peer.
    meta_bytes = _ENCODER.encode(spelt(_meta(kind, _written(kind, meta))))
    header = _HEADER.pack(
        MAGIC, PROTOCOL, CODES[kind], 0, _sequence(seq), len(meta_bytes), memoryview(payload).nbytes
    )
    _judge(header)
    return b"".join((header, meta_bytes, payload))


def decode(raw: bytes) -> Frame:
    """The frame that `raw` is, from its first byte to its last. WireError for anything else."""
    kind, seq, meta_end, total = _judge(raw)
    if len(raw) != total:
        raise WireError(
            f"this {kind} frame has {len(raw)} bytes; its header announces {total}; "
            "the peer's framing is at fault"
        )
    meta_bytes = raw[HEADER_BYTES:meta_end]
    meta = _meta(kind, meta_bytes)
    if _ENCODER.encode(spelt(meta)) != meta_bytes:
        raise WireError(
            f"the metadata of this {kind} frame is spelt in another way than its values are written; "
            "the peer's encoder is at fault"
        )
    return Frame(kind, seq, meta, memoryview(raw)[meta_end:], raw)


def chunks(raw: bytes) -> Iterator[memoryview]:
    """`raw` cut into views of `CHUNK_BYTES`, the last one shorter or equal."""
    view = memoryview(raw)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


class Assembler:
    """Puts the chunks of one direction of one stream together again. After an error it is of no use."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._missing = 0

    def push(self, chunk: bytes) -> Frame | None:
        """The frame that `chunk` completes, or None while it is not whole. WireError for an illegal one."""
        if not self._chunks:
            _, _, _, self._missing = _judge(chunk)
        expected = min(self._missing, CHUNK_BYTES)
        if len(chunk) != expected:
            raise WireError(
                f"a chunk has {len(chunk)} bytes while {self._missing} of its frame are missing; expected "
                f"{expected}; the peer's framing is at fault"
            )
        self._chunks.append(chunk)
        self._missing -= len(chunk)
        if self._missing:
            return None
        raw = b"".join(self._chunks)
        self._chunks = []
        return decode(raw)


# Deterministic: the keys of a dict are sorted, so that it too has one spelling.
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODERS = {kind: msgspec.msgpack.Decoder(META[kind]) for kind in Kind}


def _judge(start: bytes) -> tuple[Kind, int, int, int]:
    """Kind, sequence number, end of the metadata and length of the frame that begins with `start`."""
    if len(start) < HEADER_BYTES:
        raise WireError(
            f"a frame begins with {len(start)} bytes; expected its header of {HEADER_BYTES}; "
            "the peer's framing is at fault"
        )
    magic, version, code, reserved, seq, meta_bytes, payload_bytes = _HEADER.unpack_from(start)
    if magic != MAGIC:
        raise WireError(
            f"a frame begins with {magic!r}; expected {MAGIC!r}; the peer speaks another protocol"
        )
    if version != PROTOCOL:
        raise WireError(
            f"a frame is of protocol {version}; expected {PROTOCOL}; both sides have to run the same version"
        )
    kind = KINDS.get(code)
    if kind is None or reserved:
        raise WireError(
            f"a frame has kind code {code} and reserved bits {reserved}; expected a code of 1 to "
            f"{len(KINDS)} and 0; the peer's framing is at fault"
        )
    total = HEADER_BYTES + meta_bytes + payload_bytes
    if meta_bytes > MAX_META_BYTES or total > MAX_FRAME_BYTES:
        raise WireError(
            f"this {kind} frame announces {meta_bytes} bytes of metadata and {total} in all; expected "
            f"at most {MAX_META_BYTES} and {MAX_FRAME_BYTES}; use smaller micro-batches"
        )
    if payload_bytes and kind not in BEARS_TENSORS:
        raise WireError(
            f"this {kind} frame announces a payload of {payload_bytes} bytes; expected none"
        )
    return kind, _sequence(seq), HEADER_BYTES + meta_bytes, total


def _sequence(seq: int) -> int:
    if not 0 <= seq <= MAX_SEQUENCE:
        raise WireError(f"a frame has sequence number {seq}; expected 0 to {MAX_SEQUENCE}")
    return seq


def _written(kind: Kind, meta: Meta) -> bytes:
    if type(meta) is not META[kind]:
        raise WireError(
            f"this {kind} frame was given a {type(meta).__name__}; expected a {META[kind].__name__}; "
            "our own caller is at fault"
        )
    try:
        return _ENCODER.encode(spelt(meta))
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(
            f"the metadata of this {kind} frame cannot be written ({_said(error)}); "
            "our own caller is at fault"
        ) from None


def _meta(kind: Kind, meta_bytes: bytes) -> Meta:
    try:
        return _DECODERS[kind].decode(meta_bytes)
    except msgspec.MsgspecError as error:
        raise WireError(
            f"the metadata of this {kind} frame is not a legal {META[kind].__name__} ({_said(error)}); "
            "whoever encoded it is at fault"
        ) from None


def _said(error: Exception) -> str:
    """Another library's sentence, which may quote the peer: printable and short."""
    return ascii(str(error))[1:-1][:160]
