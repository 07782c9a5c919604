"""Metadata: every kind has its type, no type has room for free text, and nonsense is refused."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from splitlearn.errors import WireError
from splitlearn.roles import CODES, Kind
from splitlearn.wire import (
    META,
    Accept,
    Ask,
    BottleneckSpec,
    Bridge,
    CodecSpec,
    Countersigned,
    CutSpec,
    Detail,
    Empty,
    Enlist,
    Finish,
    Ids,
    LoraSpec,
    Memory,
    Meta,
    Norm,
    Offer,
    OptimiserSpec,
    Pairing,
    Report,
    Resume,
    Round,
    Samples,
    Scale,
    ScheduleSpec,
    Settled,
    Settlement,
    Shard,
    Step,
    StepTensor,
    TrunkModel,
    Want,
    frames,
)
from splitlearn.wire.frames import MAGIC
from splitlearn.wire.limits import PROTOCOL
from splitlearn.wire.messages import said, spelt

DOCUMENT = Path(__file__).parents[2] / "docs" / "wire.md"
LONGEST_SENTENCE = 400  # characters

OFFER = Offer(
    run="news-1",
    conversation="c" * 32,
    job="0" * 64,
    salt="f" * 64,
    purpose="train",
    mode="features",
    returns_input_gradient=False,
    model=TrunkModel(
        "bert", {"attention": "sdpa", "cased": True, "hidden_size": 384, "layer_norm_eps": 1e-12}
    ),
    cut=CutSpec(2, 5, BottleneckSpec("none", 0), BottleneckSpec("sft", 8)),
    codecs=CodecSpec("int8+zstd", "fp16", "fp16", "fp16"),
    optimiser=OptimiserSpec("adamw", 5e-5, 0.01, 0.9, 0.999, 1e-8),
    schedule=ScheduleSpec("linear", 10, 300),
    seed=0,
    layers="1" * 64,
    bottlenecks="2" * 64,
    bases="3" * 64,
    held=(0, 50),
)
SETTLEMENT = Settlement("1" * 64, 60, "2" * 64, "3" * 128, ("4" * 64,), 12, "5" * 128)
STEP = StepTensor(3, 0, 2, "train", 7, True, (3, 7), 5)
EXAMPLES: dict[Kind, Meta] = {
    Kind.OFFER: OFFER,
    Kind.ACCEPT: Accept((0, 50), ("layers", "bottlenecks"), 40),
    Kind.WEIGHTS: Shard(0, 3),
    Kind.RESUME: Resume(50, 40),
    Kind.READY: Empty(),
    Kind.ACTIVATION: STEP,
    Kind.OUTPUT: STEP,
    Kind.GRADIENT: STEP,
    Kind.INPUT_GRADIENT: STEP,
    Kind.CHECKPOINT: Step(50),
    Kind.SAVED: Step(50),
    Kind.FINISH: Finish(True),
    Kind.CLOSED: Empty(),
    Kind.SETTLE: SETTLEMENT,
    Kind.SETTLED: Settled(**msgspec.structs.asdict(SETTLEMENT), countersignature="6" * 128),
    Kind.COUNTERSIGNED: Countersigned("7" * 128),
    Kind.ROUND: Round(
        "tongues", "c" * 32, "f" * 64, "0" * 64, 2, 30_522, "a" * 64, 32, 128, 0.15, 1, 640
    ),
    Kind.ENLIST: Enlist("sw", "a" * 64, 1_234_567, 640, 60),
    Kind.ASK: Ask(120, 8, 60),
    Kind.IDS: Ids(641, "train", (3, 2)),
    Kind.ENOUGH: Empty(),
    Kind.REPORT: Report(120, 491_520, 4.25, 61.5),
    Kind.PAIRING: Pairing(
        run="de-en",
        conversation="c" * 32,
        job="0" * 64,
        salt="f" * 64,
        naming="7" * 64,
        trains=True,
        width=384,
        examples=64,
        length=129,
        activation="int8+zstd",
        gradient="int8+zstd",
        optimiser=OptimiserSpec("adamw", 2e-3, 0.0, 0.9, 0.98, 1e-8),
        schedule=ScheduleSpec("inverse_sqrt", 100, 2_000),
        seed=0,
        held=(0, 50),
    ),
    Kind.SAMPLES: Samples(29_000, 1_000),
    Kind.WANT: Want(51, "train", (28_999, 4, 170)),
    Kind.NORM: Norm(51, (2.25, 2.0**-60)),
    Kind.SCALE: Scale(51, 0.625),
    Kind.BRIDGE: Bridge(
        *("news-1", "b" * 32, "0" * 64, "e" * 64, "train", "full", 4, "int8+zstd", "fp16")
    ),
}


def raw_frame(kind: Kind, fields: object) -> bytes:
    """A frame as a hostile peer could write it: any msgpack value as metadata."""
    meta = msgspec.msgpack.encode(fields, order="deterministic")
    return frames._HEADER.pack(MAGIC, PROTOCOL, CODES[kind], 0, 1, len(meta), 0) + meta


def fields_of(meta: Meta) -> list[Any]:
    fields = msgspec.to_builtins(spelt(meta))
    assert isinstance(fields, list | tuple)
    return list(fields)


def types_within(node: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    yield node
    for name in node.__struct_fields__:
        value = getattr(node, name)
        for item in value if isinstance(value, tuple) else (value,):
            inner = item.type if isinstance(item, msgspec.inspect.Field) else item
            if isinstance(inner, msgspec.inspect.Type):
                yield from types_within(inner)


def test_every_kind_has_its_metadata_type() -> None:
    assert set(META) == set(Kind) == set(EXAMPLES)


@pytest.mark.parametrize("kind", Kind)
def test_metadata_of_every_kind_goes_there_and_back(kind: Kind) -> None:
    frame = frames.decode(frames.encode(kind, seq=1, meta=EXAMPLES[kind]))
    assert frame.meta == EXAMPLES[kind]
    assert type(frame.meta) is META[kind]


@pytest.mark.parametrize("kind", Kind)
def test_no_metadata_has_room_for_free_text_or_an_unbounded_number(kind: Kind) -> None:
    for node in types_within(msgspec.inspect.type_info(META[kind])):
        match node:
            case msgspec.inspect.StrType():
                assert node.pattern is not None
                assert re.search(node.pattern, "a text of somebody") is None
                assert re.search(node.pattern, "x" * 65) is None
            case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
                assert node.ge is not None
                assert node.le is not None
            case msgspec.inspect.DictType() | msgspec.inspect.VarTupleType():
                assert node.max_length is not None
            case (
                msgspec.inspect.StructType()
                | msgspec.inspect.LiteralType()
                | msgspec.inspect.BoolType()
                | msgspec.inspect.UnionType()
                | msgspec.inspect.NoneType()
            ):
                pass
            case _:
                pytest.fail(f"{kind} has a field of kind {type(node).__name__}")


@pytest.mark.parametrize("kind", Kind)
def test_a_missing_or_an_additional_field_is_refused(kind: Kind) -> None:
    fields = fields_of(EXAMPLES[kind])
    with pytest.raises(WireError, match="not a legal"):
        frames.decode(raw_frame(kind, [*fields, "x"]))
    if fields:
        with pytest.raises(WireError, match="not a legal"):
            frames.decode(raw_frame(kind, fields[:-1]))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, -1),
        (0, 10_000_001),
        (0, True),
        (0, 1.0),
        (0, "3"),
        (1, 4_097),
        (3, "test"),
        (3, "train\n"),
        (4, 0),
        (4, 131_073),
        (5, 1),
        (6, [0]),
        (6, [1] * 4_097),
        (6, [[1]]),
        (6, None),
        (7, 2**53 + 1),
        (7, -1),
    ],
)
def test_a_step_out_of_its_bounds_is_refused(position: int, value: object) -> None:
    fields = fields_of(STEP)
    fields[position] = value
    with pytest.raises(WireError, match="not a legal StepTensor"):
        frames.decode(raw_frame(Kind.ACTIVATION, fields))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, ""),
        (0, "a run"),
        (0, "../run"),
        (0, "run\n"),
        (0, "x" * 65),
        (0, "rün"),
        (1, "0" * 63),
        (1, "0" * 64 + "\n"),
        (1, "F" * 64),
        (3, "attack"),
        (4, "labels"),
        (6, ["bert", {"a": math.nan}]),
        (6, ["bert", {"a": math.inf}]),
        (6, ["bert", {"a": 65_537}]),
        (6, ["bert", {"a": "two words"}]),
        (6, ["bert", {"a key": 1}]),
        (6, ["bert", {"a": [1]}]),
        (6, ["bert", {"a": None}]),
        (6, ["bert", {f"k{index}": 1 for index in range(33)}]),
        (7, [2, 5, ["none", 0]]),
        (7, [2, 5, ["none", 0], ["svd", 8]]),
        (9, ["adam", 5e-5, 0.01, 0.9, 0.999, 1e-8]),
        (9, ["adamw", math.nan, 0.01, 0.9, 0.999, 1e-8]),
        (9, ["adamw", -math.inf, 0.01, 0.9, 0.999, 1e-8]),
        (11, ["linear", 10, 300, -1]),
        (11, ["linear", 10, 300, 5]),
        (11, ["linear", 10, 300, True]),
        (14, [1] * 65),
    ],
)
def test_an_offer_out_of_its_bounds_is_refused(position: int, value: object) -> None:
    fields = fields_of(OFFER)
    fields[position] = value
    with pytest.raises(WireError, match="not a legal Offer"):
        frames.decode(raw_frame(Kind.OFFER, fields))


LORA = LoraSpec(rank=8, alpha=16.0, dropout=0.1, targets=("attention.self.query",), seed=3)


def test_an_offers_detail_is_spelt_only_where_there_is_one() -> None:
    plain = frames.encode(Kind.OFFER, seq=1, meta=OFFER)
    assert msgspec.msgpack.decode(plain[_meta_at(plain)])[-1] == [0, 50]
    offer = msgspec.structs.replace(OFFER, mode="lora", detail=Detail(lora=LORA))
    decoded = frames.decode(frames.encode(Kind.OFFER, seq=1, meta=offer)).meta
    assert decoded == offer
    assert (offer.trains_trunk, OFFER.trains_trunk) == (True, False)


def _meta_at(raw: bytes) -> slice:
    size = int.from_bytes(raw[16:20], "big")
    return slice(28, 28 + size)


def test_what_came_later_into_a_detail_is_spelt_only_where_it_says_something() -> None:
    def spelling(detail: Detail) -> object:
        raw = frames.encode(Kind.OFFER, seq=1, meta=msgspec.structs.replace(OFFER, detail=detail))
        assert frames.decode(raw).meta == msgspec.structs.replace(OFFER, detail=detail)
        return msgspec.msgpack.decode(raw[_meta_at(raw)])[-1]

    assert spelling(Detail(repeats=True)) == [None, None, True, []]
    assert spelling(Detail(clips=True)) == [None, None, False, [], True]
    trains = Detail(memory_trains=True)
    assert spelling(trains) == [None, None, False, [], False, True]
    silent = [*fields_of(OFFER), [None, None, True, [], False]]
    with pytest.raises(WireError, match="spelt in another way"):
        frames.decode(raw_frame(Kind.OFFER, silent))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.NORM, [51, [math.nan]]),
        (Kind.NORM, [51, [math.inf]]),
        (Kind.NORM, [51, [-1e-9]]),
        (Kind.NORM, [51, [1.0] * 41]),
        (Kind.NORM, [-1, [1.0]]),
        (Kind.NORM, [51, 1.0]),
        (Kind.SCALE, [51, math.nan]),
        (Kind.SCALE, [51, 1.5]),
        (Kind.SCALE, [51, -0.5]),
    ],
)
def test_a_norm_or_a_factor_that_cannot_be_is_refused(kind: Kind, fields: list[object]) -> None:
    with pytest.raises(WireError, match=f"not a legal {kind.capitalize()}"):
        frames.decode(raw_frame(kind, fields))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 0},
        {"rank": 1_025},
        {"alpha": 0.0},
        {"alpha": 1e5},
        {"dropout": 1.0},
        {"targets": ()},
        {"targets": ("q",) * 33},
        {"targets": ("../q",)},
        {"seed": -1},
    ],
)
def test_adapters_out_of_their_bounds_are_refused(wrong: dict[str, Any]) -> None:
    detail = Detail(lora=msgspec.structs.replace(LORA, **wrong))
    offer = msgspec.structs.replace(OFFER, mode="lora", detail=detail)
    with pytest.raises(WireError, match="not a legal Offer"):
        frames.decode(frames.encode(Kind.OFFER, seq=1, meta=offer))


def test_an_offers_repr_does_not_show_the_salt() -> None:
    assert OFFER.salt not in repr(OFFER)
    assert OFFER.job in repr(OFFER)


def test_the_document_lists_every_kind_with_its_code_and_fields() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|(.*?)\|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {
        Kind(name): (int(code), re.findall(r"\w+", fields)) for code, name, fields in rows
    }
    assert documented == {kind: (CODES[kind], list(META[kind].__struct_fields__)) for kind in Kind}


def test_a_best_is_spelt_only_where_there_is_one() -> None:
    plain, kept = Step(50), Step(50, 40)
    raw = raw_frame(Kind.CHECKPOINT, [50])
    assert frames.encode(Kind.CHECKPOINT, seq=frames.decode(raw).seq, meta=plain) == raw
    assert said(plain) == ("step",)
    assert said(kept) == ("step", "best")
    for meta in (plain, kept):
        raw = frames.encode(Kind.CHECKPOINT, seq=1, meta=meta)
        assert frames.decode(raw).meta == meta
    for wrong in (None, -1, 2**63, "40", 4.0):
        with pytest.raises(WireError):
            frames.decode(raw_frame(Kind.CHECKPOINT, [50, wrong]))


def test_a_field_name_on_the_wire_is_refused() -> None:
    with pytest.raises(WireError, match="not a legal Step"):
        frames.decode(raw_frame(Kind.SAVED, {"step": 50}))


def test_the_other_sides_text_comes_back_short_and_printable() -> None:
    evil = "\x1b[31m" + "x" * 10_000
    with pytest.raises(WireError) as caught:
        frames.decode(raw_frame(Kind.OFFER, [*fields_of(OFFER)[:3], evil, *fields_of(OFFER)[4:]]))
    assert len(str(caught.value)) < LONGEST_SENTENCE
    assert str(caught.value).isprintable()


BESIDE = msgspec.structs.replace(STEP, memory=Memory(9, (9, 4)))


def test_a_memory_is_spelt_only_where_there_is_one() -> None:
    def spelling(meta: Meta) -> list[Any]:
        raw = frames.encode(Kind.ACTIVATION, seq=1, meta=meta)
        assert frames.decode(raw).meta == meta
        fields: list[Any] = msgspec.msgpack.decode(raw[_meta_at(raw)])
        return fields

    assert spelling(BESIDE) == [*spelling(STEP), [9, [9, 4]]]
    assert said(BESIDE) == (*said(STEP), "memory")
    with pytest.raises(WireError, match="spelt in another way"):
        frames.decode(raw_frame(Kind.ACTIVATION, [*fields_of(STEP), None]))


@pytest.mark.parametrize(
    "memory",
    [
        [0, [1]],
        [131_073, [1]],
        [9, [0]],
        [9, [1] * 4_097],
        [9],
        [9, [1], 1],
        [9, None],
        [9, [[1]]],
        [True, [1]],
    ],
)
def test_a_memory_out_of_its_bounds_is_refused(memory: object) -> None:
    with pytest.raises(WireError, match="not a legal StepTensor"):
        frames.decode(raw_frame(Kind.ACTIVATION, [*fields_of(STEP), memory]))
