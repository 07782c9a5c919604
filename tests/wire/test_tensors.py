"""Tensor containers: what safetensors reads and writes, one spelling each, and nothing hidden in them."""

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from splitlearn.errors import WireError
from splitlearn.wire import Part, tensors
from splitlearn.wire.limits import CHUNK_BYTES, MAX_DIM, MAX_HEADER_BYTES, MAX_TENSORS
from splitlearn.wire.tensors import ITEM_BYTES

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "tensors.json").read_text())

# numpy has no BF16; safetensors' numpy side widens or refuses it, so it is not among these.
NUMPY = ["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "<i1", "<u1", "?"]


OTHER_SPELLING = "not the one that its tensors have"
LONGEST_SENTENCE = 500  # characters


def container(header: str | bytes, data: bytes = b"") -> bytes:
    """A container as a hostile peer could write it."""
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def entry(name: str, start: int, end: int, *, dtype: str = "U8", shape: str | None = None) -> str:
    shape = f"[{end - start}]" if shape is None else shape
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}'


@st.composite
def parts(draw: st.DrawFn) -> tuple[Part, ...]:
    names = draw(
        st.lists(st.from_regex("[A-Za-z0-9_.]{1,12}", fullmatch=True), unique=True, max_size=4)
    )
    made = []
    for name in names:
        dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
        size = int(np.prod(shape, dtype=int)) * ITEM_BYTES[dtype]
        one = st.sampled_from(b"\0\1") if dtype == "BOOL" else st.integers(0, 255)
        made.append(
            Part(name, dtype, shape, bytes(draw(st.lists(one, min_size=size, max_size=size))))
        )
    return tuple(made)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A legal container, then a few bytes overwritten, removed or inserted; often within the header."""
    raw = bytearray(tensors.encode(draw(parts())))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(raw)))
        new = draw(
            st.binary(max_size=3)
            | st.sampled_from([b"0", b"1", b"9", b",", b" ", b'"', b"]", b"-"])
        )
        raw[position : position + draw(st.integers(0, 3))] = new
    return bytes(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def must_be_whole_or_refused(raw: bytes) -> None:
    try:
        found = tensors.decode(raw)
    except WireError:
        return
    assert tensors.encode(found) == raw
    for part in found:
        assert tensors.to_array(part).shape == part.shape


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["what"] for vector in VECTORS])
def test_containers_are_the_golden_ones(vector: dict[str, object]) -> None:
    described = vector["parts"]
    assert isinstance(described, list)
    made = tuple(
        Part(part["name"], part["dtype"], tuple(part["shape"]), bytes.fromhex(part["data"]))
        for part in described
    )
    raw = bytes.fromhex(str(vector["container"]))
    assert tensors.encode(made) == raw
    assert tensors.decode(raw) == made


@given(parts())
def test_every_container_goes_there_and_back(made: tuple[Part, ...]) -> None:
    raw = tensors.encode(made)
    assert tensors.decode(raw) == made
    assert len(raw) % 8 == sum(len(part.data) for part in made) % 8


@given(parts())
def test_the_safetensors_library_opens_every_container(made: tuple[Part, ...]) -> None:
    found = dict(safetensors.deserialize(tensors.encode(made)))  # type: ignore[no-untyped-call]
    assert {part.name: (part.dtype, list(part.shape), bytes(part.data)) for part in made} == {
        name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
        for name, tensor in found.items()
    }


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3), (1, 2, 3, 4)])
def test_arrays_go_through_safetensors_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(dtype)
    theirs = safetensors.numpy.load(tensors.encode([tensors.from_array("x", array)]))["x"]
    (ours,) = tensors.decode(safetensors.numpy.save({"x": array}))
    for found in (theirs, tensors.to_array(ours)):
        assert found.dtype == array.dtype
        assert found.shape == shape
        assert found.tobytes() == array.tobytes()


def test_a_container_of_the_safetensors_library_is_read() -> None:
    arrays: dict[str, NDArray[np.generic]] = {
        "b": np.ones((2, 3), np.float32),
        "a": np.arange(3, dtype=np.uint8),
        "c": np.array([True, False]),
    }
    found = {
        part.name: tensors.to_array(part) for part in tensors.decode(safetensors.numpy.save(arrays))
    }
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [">f4", "<f4", ">i8", ">u2"])
def test_any_memory_layout_travels_as_little_endian_c_order(order: str, dtype: str) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
    if order == "C":
        array = np.ascontiguousarray(array)
    part = tensors.from_array("x", array[:, ::2])
    assert part.shape == (2, 2)
    assert bytes(part.data) == np.array([[0, 2], [3, 5]], dtype=dtype.replace(">", "<")).tobytes()


def test_an_array_is_not_copied_where_its_layout_allows() -> None:
    array = np.zeros(4, np.float32)
    part = tensors.from_array("x", array)
    array[0] = 1.0
    assert bytes(part.data) == np.array([1, 0, 0, 0], np.float32).tobytes()
    assert isinstance(part.data, memoryview)
    assert part.data.readonly


def test_bfloat16_travels_as_its_bits() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1.0, -2.0
    (part,) = tensors.decode(tensors.encode([tensors.from_array("x", bits)]))
    assert part.dtype == "BF16"
    assert np.array_equal(tensors.to_array(part), bits)


@pytest.mark.parametrize("dtype", ["c8", "u4", "u8", "S3", "M8[s]", "O"])
def test_an_array_that_cannot_travel_is_refused(dtype: str) -> None:
    with pytest.raises(WireError, match="cannot travel"):
        tensors.from_array("x", np.zeros(2, dtype))


def test_what_is_read_shares_the_payload_and_cannot_be_written() -> None:
    payload = bytearray(tensors.encode([Part("x", "F32", (2,), bytes(8))]))
    (part,) = tensors.decode(memoryview(payload))
    array = tensors.to_array(part)
    payload[-1] = 0x40
    assert array.tolist() == [0.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_written_array_of_a_mutable_part_cannot_be_written_either() -> None:
    assert not tensors.to_array(Part("x", "U8", (2,), memoryview(bytearray(2)))).flags.writeable


def test_repr_shows_no_value() -> None:
    assert repr(Part("x", "U8", (3,), b"key")) == "Part(name='x', dtype='U8', shape=(3,))"


# What is wrong, a container in which it is, what the error says.
ILLEGAL: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "has 0 bytes; expected at least 8"),
    "half a length": (bytes(7), "has 7 bytes"),
    "no header": (struct.pack("<Q", 1), "claims a header of 1 bytes"),
    "a header over the limit": (
        struct.pack("<Q", MAX_HEADER_BYTES + 8) + b" " * (MAX_HEADER_BYTES + 8),
        "claims a header of 65544",
    ),
    "an empty header": (bytes(8), "is not legal"),
    "a list": (container("[]"), "is not legal"),
    "a number for an entry": (container('{"x":1}'), "is not legal"),
    "an empty entry": (container('{"x":{}}'), "is not legal"),
    "braces without end": (container("{" * 10_000), "is not legal"),
    "deep nesting": (container('{"x":' + "[" * 10_000), "is not legal"),
    "no UTF-8": (container(b'{"\xff":1}'), "is not legal"),
    "half a surrogate pair": (container("{" + entry("\\ud800", 0, 0) + "}"), "is not legal"),
    "an additional key": (
        container('{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"note":"hello"}}'),
        "is not legal",
    ),
    "metadata": (container('{"__metadata__":{"label":"spam"}}'), "is not legal"),
    "empty metadata": (container('{"__metadata__":{}}'), "is not legal"),
    "a tensor named metadata": (
        container("{" + entry("__metadata__", 0, 0) + "}"),
        "no __metadata__",
    ),
    "an empty name": (container("{" + entry("", 0, 0) + "}"), "tensor name ''"),
    "a name of words": (container("{" + entry("a b", 0, 0) + "}"), "tensor name 'a b'"),
    "a line break in a name": (container("{" + entry("a\\n", 0, 0) + "}"), "tensor name 'a\\n'"),
    "a long name": (container("{" + entry("x" * 129, 0, 0) + "}"), "is not legal or stands twice"),
    "an escaped name": (container("{" + entry("\\u0078", 0, 0) + "}"), OTHER_SPELLING),
    "dtype U16": (container("{" + entry("x", 0, 2, dtype="U16") + "}", b"ab"), "value 'U16'"),
    "dtype F8": (container("{" + entry("x", 0, 1, dtype="F8_E4M3") + "}", b"a"), "value 'F8_E4M3'"),
    "dtype complex": (
        container("{" + entry("x", 0, 8, dtype="C64") + "}", bytes(8)),
        "value 'C64'",
    ),
    "more shape than bytes": (
        container("{" + entry("x", 0, 4, dtype="F32", shape="[2]") + "}", bytes(4)),
        "has 4 bytes; expected 8 for F32",
    ),
    "fewer bytes than claimed": (
        container("{" + entry("x", 0, 2, shape="[2]") + "}", b"a"),
        "has 1 bytes; expected 2",
    ),
    "a negative dimension": (
        container("{" + entry("x", 0, 1, shape="[-1]") + "}", b"a"),
        "is not legal",
    ),
    "a float dimension": (
        container("{" + entry("x", 0, 1, shape="[1.0]") + "}", b"a"),
        "is not legal",
    ),
    "a huge dimension": (
        container("{" + entry("x", 0, 0, shape=f"[0,{MAX_DIM + 1}]") + "}"),
        "is not legal",
    ),
    "five dimensions": (
        container("{" + entry("x", 0, 1, shape="[1,1,1,1,1]") + "}", b"a"),
        "not legal",
    ),
    "offsets backwards": (container("{" + entry("x", 2, 0, shape="[0]") + "}"), OTHER_SPELLING),
    "a trailing byte": (container("{" + entry("x", 0, 1) + "}", b"ab"), "every byte to belong"),
    "bytes without a tensor": (container("{}", b"a"), "every byte to belong"),
    "a gap in front": (container("{" + entry("x", 1, 2) + "}", b"ab"), OTHER_SPELLING),
    "a gap": (
        container("{" + entry("x", 0, 1) + "," + entry("y", 2, 3) + "}", b"abc"),
        OTHER_SPELLING,
    ),
    "an overlap": (
        container("{" + entry("x", 0, 2) + "," + entry("y", 1, 3) + "}", b"abc"),
        OTHER_SPELLING,
    ),
    "buffers in another order": (
        container("{" + entry("x", 1, 2) + "," + entry("y", 0, 1) + "}", b"ab"),
        "every byte to belong",
    ),
    "a name twice": (
        container("{" + entry("x", 0, 1) + "," + entry("x", 1, 2) + "}", b"ab"),
        OTHER_SPELLING,
    ),
    "a space inside": (container("{ " + entry("x", 0, 1) + "}", b"a"), OTHER_SPELLING),
    "more padding": (container("{" + entry("x", 0, 1) + "}" + " " * 8, b"a"), OTHER_SPELLING),
    "keys in another order": (
        container('{"x":{"shape":[1],"dtype":"U8","data_offsets":[0,1]}}', b"a"),
        OTHER_SPELLING,
    ),
    "text behind the header": (container("{" + entry("x", 0, 1) + "}x", b"a"), "is not legal"),
    "a boolean of 2": (
        container("{" + entry("x", 0, 2, dtype="BOOL") + "}", b"\1\2"),
        "other than 0 and 1",
    ),
    "too many tensors": (
        container(
            "{" + ",".join(entry(f"{index}", 0, 0) for index in range(MAX_TENSORS + 1)) + "}"
        ),
        "is not legal",
    ),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_container_is_refused_with_its_reason(what: str) -> None:
    raw, sentence = ILLEGAL[what]
    with pytest.raises(WireError) as caught:
        tensors.decode(raw)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < LONGEST_SENTENCE


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ([Part("x", "U8", (1,), b"a"), Part("x", "U8", (1,), b"a")], "stands twice"),
        ([Part("x y", "U8", (1,), b"a")], "'x y' is not legal"),
        ([Part("__metadata__", "U8", (1,), b"a")], "no __metadata__"),
        ([Part("x", "U16", (1,), b"ab")], "has dtype 'U16'"),
        ([Part("x", "U8", (1, 1, 1, 1, 1), b"a")], "expected at most 4 dimensions"),
        ([Part("x", "U8", (-1, -1), b"a")], "shape (-1, -1)"),
        ([Part("x", "U8", (0, MAX_DIM + 1), b"")], "dimensions of 0 to"),
        ([Part("x", "F32", (1,), b"a")], "has 1 bytes; expected 4"),
        ([Part("x", "BOOL", (1,), b"\xff")], "other than 0 and 1"),
        ([Part(f"x{index}", "U8", (0,), b"") for index in range(MAX_TENSORS + 1)], "513 tensors"),
        (
            [Part(f"{index:0128d}", "U8", (0,), b"") for index in range(512)],
            "put them into several",
        ),
    ],
)
def test_a_part_that_may_not_travel_is_refused_before_it_leaves(
    made: list[Part], sentence: str
) -> None:
    with pytest.raises(WireError) as caught:
        tensors.encode(made)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "claim",
    [
        struct.pack("<Q", 2 * 2**30) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        container("{" + entry("x", 0, 2 * 2**30, dtype="F32", shape="[536870912]") + "}"),
        container("{" + entry("x", 0, 2 * 2**30) + "}"),
        container("{" + entry("x", 0, 2 * 2**30, dtype="F64", shape="[16384,16384]") + "}"),
        container("{" + entry("x", 0, 0, shape="[67108864,67108864,67108864,67108864]") + "}"),
        container("{" + entry("x", 2**62, 2**63) + "}"),
    ],
)
def test_a_claim_of_gigabytes_allocates_nothing(claim: bytes) -> None:
    claim += bytes(CHUNK_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            tensors.decode(claim)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_reading_keeps_no_copy_of_the_tensors() -> None:
    payload = tensors.encode([Part("x", "F32", (2**20,), bytes(4 * 2**20))])
    tracemalloc.start()
    try:
        (part,) = tensors.decode(payload)
        tensors.to_array(part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**17


@given(st.binary(max_size=100))
def test_any_bytes_are_a_container_or_a_wire_error(raw: bytes) -> None:
    must_be_whole_or_refused(raw)


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode), st.binary(max_size=16))
def test_any_header_is_whole_or_a_wire_error(header: bytes, data: bytes) -> None:
    must_be_whole_or_refused(container(header, data))


@given(json_values, st.binary(max_size=16))
def test_any_json_is_whole_or_a_wire_error(value: object, data: bytes) -> None:
    must_be_whole_or_refused(container(json.dumps(value, separators=(",", ":")), data))


@given(
    st.dictionaries(
        st.sampled_from(["x", "y", "__metadata__", ""]),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from([*ITEM_BYTES, "U16", 3]),
                "shape": st.lists(st.integers(-1, 3) | st.just(2**64), max_size=5) | json_values,
                "data_offsets": st.lists(st.integers(-1, 9), min_size=1, max_size=3) | json_values,
            }
        ),
    ),
    st.binary(max_size=16),
)
def test_almost_legal_headers_are_whole_or_a_wire_error(value: object, data: bytes) -> None:
    must_be_whole_or_refused(container(json.dumps(value, separators=(",", ":")), data))


@given(damaged())
def test_a_damaged_container_is_another_whole_one_or_a_wire_error(raw: bytes) -> None:
    must_be_whole_or_refused(raw)
