"""Records as lines: one spelling for ever, strict both ways, nothing that could hold content."""

from typing import get_args

import msgspec
import pytest

from splitlearn.audit.records import (
    MAX_LINE_BYTES,
    Checkpointed,
    Denied,
    Dp,
    Gap,
    HopHead,
    Leakage,
    PartShape,
    Party,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Record,
    Redaction,
    RunClose,
    RunOpen,
    decode,
    encode,
)
from splitlearn.errors import AuditError
from splitlearn.roles import Kind, Role
from splitlearn.wire.tensors import Part
from tests.door import COMPUTE, TRUSTED, offer

OPEN = RunOpen.of(
    offer(),
    software="splitlearn 1",
    me=Party(id=TRUSTED.uri, role=Role.TRUSTED),
    peer=Party(id=COMPUTE.uri, role=Role.COMPUTE),
    binding="e" * 64,
    log_key="a+b+c",
    policy_text="{}",
    vocabulary=None,
)
PAYLOAD = Payload(
    run="news",
    direction="out",
    me=TRUSTED.uri,
    peer=COMPUTE.uri,
    peer_role=Role.COMPUTE,
    binding="e" * 64,
    message=5,
    kind=Kind.ACTIVATION,
    schema="activation/1",
    parts=(PartShape(name="x", dtype="I8", shape=(28, 32), data_bytes=896),),
    wire_bytes=1000,
    commit="f" * 64,
    policy="0" * 64,
    rules=("activation",),
)
EXAMPLES: tuple[Record, ...] = (
    OPEN,
    PAYLOAD,
    Denied(
        run="news",
        direction="out",
        peer=COMPUTE.uri,
        kind=Kind.GRADIENT,
        rule="no-rule",
        policy="0" * 64,
    ),
    Receipt(
        run="news",
        conversation="c" * 32,
        peer=COMPUTE.uri,
        last=5,
        chain="2" * 64,
        key="a+b+c",
        signature="3" * 128,
    ),
    PeerCheckpoint(
        run="news",
        conversation="c" * 32,
        peer=COMPUTE.uri,
        key="a+b+c",
        size=7,
        root="4" * 64,
        mine=3,
    ),
    PolicyChange(run="news", before="0" * 64, policy="5" * 64),
    Redaction(record=1, blob="6" * 64, why="request"),
    Leakage(
        run="news",
        at="canary",
        suite=1,
        seed=0,
        scored=1000,
        tokens=0.25,
        tokens_by="ridge",
        labels=None,
        tokens_limit=0.5,
        report="7" * 64,
    ),
    msgspec.structs.replace(
        PAYLOAD,
        blob="8" * 64,
        dp=Dp(
            mechanism="gaussian",
            clip=1.0,
            noise=4.0,
            epoch=2,
            unit="example",
            relation="replace-labels",
        ),
    ),
    Checkpointed(why="step", root="1" * 64),
    Gap(torn_bytes=3),
    RunClose(
        run="news",
        outcome="done",
        messages_out=1,
        messages_in=0,
        bytes_out=1000,
        bytes_in=0,
        denied=0,
    ),
    HopHead(
        run="news",
        conversation="b" * 32,
        neighbour="spiffe://fed.example/party/farm/role/compute",
        key="a+b+c",
        size=7,
        root="4" * 64,
    ),
)
# A log outlives the program that wrote it: this line must be readable, and written so, for ever.
GOLDEN = (
    b'{"type":"payload","v":1,"seq":0,"time":0.0,"run":"news","direction":"out",'
    b'"me":"spiffe://example.org/party/clinic/role/trusted",'
    b'"peer":"spiffe://example.org/party/farm/role/compute","peer_role":"compute",'
    b'"binding":"' + b"e" * 64 + b'","message":5,"reply_to":0,"step":null,"micro_batch":null,'
    b'"phase":"","kind":"activation","schema":"activation/1","codec":"","rows":0,"columns":0,'
    b'"examples":0,"longest":0,"side":[],"parts":[{"name":"x","dtype":"I8","shape":[28,32],'
    b'"data_bytes":896}],"wire_bytes":1000,"commit":"' + b"f" * 64 + b'","blob":"withheld",'
    b'"policy":"' + b"0" * 64 + b'","verdict":"allow","rules":["activation"],"dp":null}\n'
)


@pytest.mark.parametrize(
    "record", EXAMPLES, ids=lambda r: f"{type(r).__name__} {getattr(r, 'blob', '')[:4]}"
)
def test_a_record_reads_back_from_one_line(record: Record) -> None:
    line = encode(record)
    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == record


def test_a_payload_is_spelt_as_it_always_was() -> None:
    assert encode(PAYLOAD) == GOLDEN
    assert decode(GOLDEN) == PAYLOAD


def test_what_a_codec_lost_stands_behind_all_else() -> None:
    line = encode(msgspec.structs.replace(PAYLOAD, error=0.25))
    assert line == GOLDEN[:-2] + b',"error":0.25}\n'


NO_RECORDS = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "no type": b"{}",
    "no text": b"\xff",
    "a later version": GOLDEN.replace(b'"v":1', b'"v":2'),
    "a further key": GOLDEN.replace(b'"dp":null', b'"dp":null,"text":"hello"'),
    "a negative size": GOLDEN.replace(b'"wire_bytes":1000', b'"wire_bytes":-1'),
    "another verdict": GOLDEN.replace(b'"verdict":"allow"', b'"verdict":"deny"'),
    "an unknown kind": GOLDEN.replace(b'"kind":"activation"', b'"kind":"labels"'),
    "a blob that is no digest": GOLDEN.replace(b'"blob":"withheld"', b'"blob":"redacted"'),
    "a receipt without signature": encode(EXAMPLES[3]).replace(b"3" * 128, b""),
    "a share above one": encode(EXAMPLES[7]).replace(b'"tokens":0.25', b'"tokens":1.25'),
    "a reason of its own": encode(EXAMPLES[6]).replace(b'"request"', b'"because"'),
    "a conversation that is no number": encode(OPEN).replace(b"c" * 32, b"C" * 32),
    "a commit that is no digest": GOLDEN.replace(b'"f', b'"g', 1),
    "endless": b" " * (MAX_LINE_BYTES + 1),
}


@pytest.mark.parametrize("name", NO_RECORDS)
def test_a_line_that_is_no_record_of_this_version_is_refused(name: str) -> None:
    with pytest.raises(AuditError):
        decode(NO_RECORDS[name])


def test_a_run_is_opened_without_its_salt() -> None:
    assert offer().salt.encode() not in encode(OPEN)
    assert OPEN.job == offer().job
    assert OPEN.bottlenecks == ("none:0", "pca:8")
    assert OPEN.policy == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_a_part_is_recorded_by_shape_alone() -> None:
    shape = PartShape.of(Part("x", "I8", (2, 3), b"secret"))
    assert msgspec.json.encode(shape) == (b'{"name":"x","dtype":"I8","shape":[2,3],"data_bytes":6}')
    assert PartShape.before_encoding((2, 3)).data_bytes == 24


def test_no_field_of_any_record_is_of_a_type_that_could_hold_a_tensor() -> None:
    kinds = get_args(Record)
    assert len(kinds) == len({type(record) for record in EXAMPLES})
    fields = {field.name for kind in (*kinds, Dp) for field in msgspec.structs.fields(kind)}
    assert not fields & {"values", "mean", "norm", "min", "max", "text", "ids", "salt"}
