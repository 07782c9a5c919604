import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from splitlearn.coordination.messages import (
    MAX_DESCRIPTOR_BYTES,
    MAX_REPORT_BYTES,
    content_of,
    descriptor_of,
    reading_of,
    refusal_of,
    reply_of,
)
from splitlearn.errors import WireError


def message(content: RecordDict) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return Message(content, dst_node_id=2, message_type="query")


def test_a_descriptor_and_a_report_come_through_as_they_were() -> None:
    longest = bytes(range(256)) * (MAX_DESCRIPTOR_BYTES // 256)
    assert descriptor_of(message(content_of(longest))) == longest
    assert reading_of(message(reply_of(b"report"))) == b"report"
    assert reading_of(message(refusal_of("no\x1b[2J"))) == "no [2J"


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"round": ConfigRecord()}),
        RecordDict({"round": ConfigRecord({"descriptor": "text"})}),
        RecordDict({"round": ConfigRecord({"descriptor": 3})}),
        RecordDict({"round": ConfigRecord({"other": b""})}),
        RecordDict({"round": ConfigRecord({"descriptor": b"", "other": b""})}),
        RecordDict({"other": ConfigRecord({"descriptor": b""})}),
        RecordDict({"round": MetricRecord({"descriptor": 1.0})}),
        RecordDict({"round": ConfigRecord({"descriptor": b""}), "weights": ArrayRecord()}),
        RecordDict({"round": ConfigRecord({"descriptor": bytes(MAX_DESCRIPTOR_BYTES + 1)})}),
    ],
)
def test_every_other_content_is_refused(content: RecordDict) -> None:
    with pytest.raises(WireError, match="round"):
        descriptor_of(message(content))


def test_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(WireError, match="descriptor of a round has 16385 bytes"):
        content_of(bytes(MAX_DESCRIPTOR_BYTES + 1))
    with pytest.raises(WireError, match="65536 at most"):
        reply_of(bytes(MAX_REPORT_BYTES + 1))
    assert len(str(reading_of(message(refusal_of("x" * 9_000))))) == 600


def test_reading_a_reply_never_raises() -> None:
    for content, told in (
        (RecordDict(), "other records"),
        (RecordDict({"round": ConfigRecord({"report": "text"})}), "something else"),
        (RecordDict({"round": ConfigRecord({"report": bytes(MAX_REPORT_BYTES + 1)})}), "at most"),
        (RecordDict({"round": ConfigRecord({"refusal": "a", "report": b""})}), "other values"),
        (RecordDict({"weights": ArrayRecord()}), "other records"),
    ):
        read = reading_of(message(content))
        assert isinstance(read, str)
        assert told in read
    failed = Message(Error(code=2, reason="x" * 9_000), reply_to=message(content_of(b"")))
    assert len(str(reading_of(failed))) < 700
