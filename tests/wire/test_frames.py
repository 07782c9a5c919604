"""Frames: golden bytes, a spelling that is unique, and a reader that nothing but WireError leaves."""

import copy
import json
import re
import struct
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import WireError
from splitlearn.roles import CODES, Kind
from splitlearn.wire import (
    META,
    Assembler,
    CodecSpec,
    Frame,
    Meta,
    OptimiserSpec,
    Part,
    Resume,
    Step,
    frames,
    tensors,
)
from splitlearn.wire.frames import BEARS_TENSORS, HEADER_BYTES, MAGIC
from splitlearn.wire.limits import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_SEQUENCE,
    PROTOCOL,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "frames.json").read_text())


def header(
    *,
    magic: bytes = MAGIC,
    version: int = PROTOCOL,
    code: int = CODES[Kind.SAVED],
    reserved: int = 0,
    seq: int = 1,
    meta_bytes: int = 2,
    payload_bytes: int = 0,
) -> bytes:
    """A header as docs/wire.md draws it, independent of the library's own struct."""
    return struct.pack(">4sBBHQIQ", magic, version, code, reserved, seq, meta_bytes, payload_bytes)


META_OF_SAVED = b"\x91\x32"
SAVED = header() + META_OF_SAVED


@st.composite
def legal_frames(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(sorted(BEARS_TENSORS)))
    vector = next(vector for vector in VECTORS if vector["kind"] == kind)
    meta = msgspec.convert(vector["meta"], META[kind])
    return frames.encode(
        kind,
        seq=draw(st.integers(0, MAX_SEQUENCE)),
        meta=meta,
        payload=draw(st.binary(max_size=64)),
    )


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A legal frame, then a few bytes overwritten, removed or inserted."""
    raw = bytearray(draw(legal_frames()))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(raw)))
        raw[position : position + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(raw)


# A header that is legal except perhaps in its lengths, and any msgpack value behind it.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def must_be_whole_or_refused(raw: bytes) -> None:
    try:
        frame = frames.decode(raw)
    except WireError:
        return
    assert frames.encode(frame.kind, seq=frame.seq, meta=frame.meta, payload=frame.payload) == raw


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["kind"] for vector in VECTORS])
def test_frames_are_the_golden_ones(vector: dict[str, object]) -> None:
    kind = Kind(str(vector["kind"]))
    meta = msgspec.convert(vector["meta"], META[kind])
    raw, payload = bytes.fromhex(str(vector["frame"])), bytes.fromhex(str(vector["payload"]))
    assert (
        frames.encode(kind, seq=msgspec.convert(vector["seq"], int), meta=meta, payload=payload)
        == raw
    )
    assert frames.decode(raw) == Frame(
        kind, msgspec.convert(vector["seq"], int), meta, payload, raw
    )


def test_there_is_a_golden_frame_of_every_kind() -> None:
    assert [vector["kind"] for vector in VECTORS] == [kind.value for kind in Kind]


def test_the_documents_frame_is_the_one_that_is_written() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    drawn = re.search(
        r"^## A whole frame, byte by byte\n.*?```text\n(.*?)```", text, re.DOTALL | re.MULTILINE
    )
    assert drawn is not None
    raw = bytes.fromhex("".join(line[6:54] for line in drawn[1].splitlines()))
    frame = frames.decode(raw)
    assert (frame.kind, frame.seq) == (Kind.OUTPUT, 4)
    assert tensors.decode(frame.payload) == (
        Part("x", "F16", (2, 2), bytes.fromhex("003c00c00038003c")),
    )
    assert frames.encode(frame.kind, seq=4, meta=frame.meta, payload=frame.payload) == raw


def test_a_frame_spelt_by_hand_is_read() -> None:
    frame = frames.decode(SAVED)
    assert (frame.kind, frame.seq, frame.meta, bytes(frame.payload)) == (
        Kind.SAVED,
        1,
        Step(50),
        b"",
    )
    assert frames.encode(Kind.SAVED, seq=1, meta=Step(50)) == SAVED


def test_payload_is_a_view_of_the_bytes_received() -> None:
    raw = bytes.fromhex(VECTORS[5]["frame"])
    payload = frames.decode(raw).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is raw
    assert payload.readonly


def test_repr_shows_neither_metadata_nor_payload() -> None:
    assert repr(frames.decode(SAVED)) == "Frame(kind=<Kind.SAVED: 'saved'>, seq=1)"


# What is wrong, a frame in which it is, what the error says.
ILLEGAL: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "begins with 0 bytes; expected its header of 28"),
    "half a header": (SAVED[:27], "begins with 27 bytes"),
    "other magic": (header(magic=b"HTTP") + META_OF_SAVED, "begins with b'HTTP'"),
    "a later version": (header(version=2) + META_OF_SAVED, "of protocol 2; expected 1"),
    "version 0": (header(version=0) + META_OF_SAVED, "of protocol 0; expected 1"),
    "kind 0": (header(code=0) + META_OF_SAVED, "kind code 0"),
    "kind 29": (header(code=29) + META_OF_SAVED, "kind code 29"),
    "reserved bits": (header(reserved=1) + META_OF_SAVED, "reserved bits 1"),
    "sequence": (header(seq=2**53 + 1) + META_OF_SAVED, "sequence number 9007199254740993"),
    "metadata over the limit": (header(meta_bytes=65_537), "announces 65537 bytes of metadata"),
    "a payload": (
        header(payload_bytes=1) + META_OF_SAVED + b"x",
        "a payload of 1 bytes; expected none",
    ),
    "a byte more": (SAVED + b"x", "has 31 bytes; its header announces 30"),
    "a byte less": (SAVED[:-1], "has 29 bytes; its header announces 30"),
    "half of the metadata": (header(meta_bytes=1) + b"\x91", "not a legal Step"),
    "no metadata": (header(meta_bytes=0), "not a legal Step"),
    "metadata and more": (header(meta_bytes=3) + META_OF_SAVED + b"\x00", "not a legal Step"),
    "a longer integer": (header(meta_bytes=3) + b"\x91\xcc\x32", "spelt in another way"),
    "a longer array": (header(meta_bytes=4) + b"\xdc\x00\x01\x32", "spelt in another way"),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_frame_is_refused_with_its_reason(what: str) -> None:
    raw, sentence = ILLEGAL[what]
    with pytest.raises(WireError) as caught:
        frames.decode(raw)
    assert sentence in str(caught.value)


def test_a_payload_over_the_limit_is_refused_and_one_at_it_is_not() -> None:
    vector = VECTORS[5]
    meta = msgspec.convert(vector["meta"], META[Kind.ACTIVATION])
    spare = MAX_FRAME_BYTES - len(frames.encode(Kind.ACTIVATION, seq=1, meta=meta))
    assert (
        len(frames.encode(Kind.ACTIVATION, seq=1, meta=meta, payload=bytes(spare)))
        == MAX_FRAME_BYTES
    )
    with pytest.raises(WireError, match="and 67108865 in all"):
        frames.encode(Kind.ACTIVATION, seq=1, meta=meta, payload=bytes(spare + 1))


def test_keys_in_another_order_are_another_spelling_and_refused() -> None:
    fields = copy.deepcopy(VECTORS[0]["meta"])
    meta = msgspec.msgpack.encode(fields)
    raw = header(code=1, meta_bytes=len(meta)) + meta
    frames.decode(raw)
    fields[7][1] = dict(reversed(fields[7][1].items()))
    meta = msgspec.msgpack.encode(fields)
    with pytest.raises(WireError, match="spelt in another way"):
        frames.decode(header(code=1, meta_bytes=len(meta)) + meta)


def test_a_key_twice_is_another_spelling_and_refused() -> None:
    once = msgspec.msgpack.encode(VECTORS[0]["meta"])
    pair = b"\xa9attention\xa4sdpa"
    twice = once.replace(b"\x84" + pair, b"\x85" + pair + pair)
    assert len(twice) == len(once) + len(pair)
    with pytest.raises(WireError, match="spelt in another way"):
        frames.decode(header(code=1, meta_bytes=len(twice)) + twice)


@pytest.mark.parametrize("seq", [-1, MAX_SEQUENCE + 1])
def test_our_own_sequence_number_out_of_range_is_refused(seq: int) -> None:
    with pytest.raises(WireError, match="sequence number"):
        frames.encode(Kind.SAVED, seq=seq, meta=Step(1))


def test_our_own_payload_where_none_belongs_is_refused() -> None:
    with pytest.raises(WireError, match="expected none"):
        frames.encode(Kind.SAVED, seq=1, meta=Step(1), payload=b"labels")


def test_metadata_of_another_kind_is_refused() -> None:
    with pytest.raises(WireError, match="was given a Resume; expected a Step"):
        frames.encode(Kind.SAVED, seq=1, meta=Resume(1, 0))


@pytest.mark.parametrize("step", [-1, 10_000_001, 2**70, "1", object(), "\ud800"])
def test_our_own_metadata_out_of_bounds_is_refused_before_it_leaves(step: object) -> None:
    with pytest.raises(WireError, match="metadata of this saved frame"):
        frames.encode(Kind.SAVED, seq=1, meta=msgspec.structs.replace(Step(1), step=step))


def test_an_integer_in_a_floats_place_has_the_floats_spelling() -> None:
    offer = msgspec.convert(VECTORS[0]["meta"], META[Kind.OFFER])

    def spelt(weight_decay: float) -> bytes:
        optimiser = OptimiserSpec("adamw", 5e-5, weight_decay, 0.9, 0.999, 1e-8)
        return frames.encode(
            Kind.OFFER, seq=0, meta=msgspec.structs.replace(offer, optimiser=optimiser)
        )

    assert spelt(0) == spelt(0.0)
    must_be_whole_or_refused(spelt(0))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 100])
def test_chunks_put_together_are_the_frame(size: int) -> None:
    meta = msgspec.convert(VECTORS[5]["meta"], META[Kind.ACTIVATION])
    raw = frames.encode(Kind.ACTIVATION, seq=1, meta=meta, payload=bytes(size))
    pieces = [bytes(chunk) for chunk in frames.chunks(raw)]
    assert all(len(piece) == CHUNK_BYTES for piece in pieces[:-1])
    assembler = Assembler()
    for _ in range(2):  # the second frame on the same stream
        seen = [assembler.push(piece) for piece in pieces]
        assert seen[:-1] == [None] * (len(pieces) - 1)
        assert seen[-1] == frames.decode(raw)


def test_a_chunk_may_not_hold_bytes_of_the_next_frame() -> None:
    with pytest.raises(WireError, match="a chunk has 60 bytes while 30 of its frame are missing"):
        Assembler().push(SAVED + SAVED)


@pytest.mark.parametrize("size", [0, 1, 99, 101, CHUNK_BYTES])
def test_a_second_chunk_of_the_wrong_size_is_refused(size: int) -> None:
    meta = msgspec.convert(VECTORS[5]["meta"], META[Kind.ACTIVATION])
    bare = len(frames.encode(Kind.ACTIVATION, seq=1, meta=meta))
    raw = frames.encode(Kind.ACTIVATION, seq=1, meta=meta, payload=bytes(CHUNK_BYTES + 100 - bare))
    assembler = Assembler()
    assert assembler.push(raw[:CHUNK_BYTES]) is None
    with pytest.raises(WireError, match="while 100 of its frame are missing; expected 100"):
        assembler.push(bytes(size))


def test_a_first_chunk_without_a_whole_header_is_refused() -> None:
    with pytest.raises(WireError, match="begins with 10 bytes"):
        Assembler().push(SAVED[:10])


@pytest.mark.parametrize(
    "claim",
    [
        header(payload_bytes=2 * 2**30),
        header(code=CODES[Kind.ACTIVATION], meta_bytes=20, payload_bytes=2 * 2**30),
        header(code=CODES[Kind.ACTIVATION], meta_bytes=2**31, payload_bytes=0),
        header(code=CODES[Kind.ACTIVATION], meta_bytes=2**32 - 1, payload_bytes=2**64 - 1),
        header(code=CODES[Kind.ACCEPT], meta_bytes=7) + b"\x92\xdd\x7f\xff\xff\xff\x90",
        header(code=CODES[Kind.OFFER], meta_bytes=5) + b"\xdb\x7f\xff\xff\xff",
        header(code=CODES[Kind.OFFER], meta_bytes=5) + b"\xdf\x7f\xff\xff\xff",
    ],
)
def test_a_claim_of_gigabytes_allocates_nothing(claim: bytes) -> None:
    tracemalloc.start()
    try:
        for read in (frames.decode, Assembler().push):
            with pytest.raises(WireError):
                read(claim)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_a_stream_that_ends_early_has_kept_only_what_came() -> None:
    longest = MAX_FRAME_BYTES - HEADER_BYTES - 20
    claim = header(code=CODES[Kind.ACTIVATION], meta_bytes=20, payload_bytes=longest)
    tracemalloc.start()
    try:
        assert Assembler().push(claim + bytes(CHUNK_BYTES - HEADER_BYTES)) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * CHUNK_BYTES


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_wire_error(raw: bytes) -> None:
    must_be_whole_or_refused(raw)


@given(damaged())
def test_a_damaged_frame_is_another_whole_frame_or_a_wire_error(raw: bytes) -> None:
    must_be_whole_or_refused(raw)


@given(st.sampled_from(Kind), st.binary(max_size=100) | values.map(msgspec.msgpack.encode))
def test_any_metadata_is_whole_or_a_wire_error(kind: Kind, meta: bytes) -> None:
    must_be_whole_or_refused(header(code=CODES[kind], meta_bytes=len(meta)) + meta)


@given(st.sampled_from(Kind), st.data())
def test_a_value_exchanged_within_legal_metadata_is_whole_or_a_wire_error(
    kind: Kind, data: st.DataObject
) -> None:
    fields = copy.deepcopy(VECTORS[CODES[kind] - 1]["meta"])
    if fields:
        fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(values)
    meta = msgspec.msgpack.encode(fields)
    must_be_whole_or_refused(header(code=CODES[kind], meta_bytes=len(meta)) + meta)


@given(st.lists(st.binary(max_size=80) | damaged() | legal_frames(), max_size=4))
def test_an_assembler_lets_nothing_out_but_frames_and_wire_errors(pieces: list[bytes]) -> None:
    assembler = Assembler()
    try:
        for piece in pieces:
            frame = assembler.push(piece)
            assert frame is None or frame.raw == piece
    except WireError:
        pass


@given(legal_frames())
def test_every_legal_frame_goes_there_and_back(raw: bytes) -> None:
    frame = frames.decode(raw)
    assert frames.encode(frame.kind, seq=frame.seq, meta=frame.meta, payload=frame.payload) == raw


def test_codec_names_are_plain_text_on_the_wire() -> None:
    meta: Meta = CodecSpec("int8+zstd", "fp16", "fp16", "fp16")
    assert msgspec.msgpack.encode(meta) == b"\x94\xa9int8+zstd\xa4fp16\xa4fp16\xa4fp16"
