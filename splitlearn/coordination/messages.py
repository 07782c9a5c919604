"""What a round's opening and its answers look like inside Flower's messages: one record, one value."""

from collections.abc import Mapping

from flwr.app import ConfigRecord, Message, RecordDict

from splitlearn.errors import ManifestError, WireError

__all__ = [
    "MAX_DESCRIPTOR_BYTES",
    "MAX_REPORT_BYTES",
    "MAX_SENTENCE",
    "QUERY",
    "content_of",
    "descriptor_of",
    "number_of",
    "reading_of",
    "refusal_of",
    "reply_of",
]

# A descriptor is settings: seed, steps, mix, shapes, addresses.
MAX_DESCRIPTOR_BYTES = 16 * 2**10
MAX_REPORT_BYTES = 64 * 2**10
MAX_SENTENCE = 600
MAX_NUMBER = 1024
# Flower's word for a message that a ClientApp answers without training.
QUERY = "query"
_RECORD = "round"
_DESCRIPTOR, _REPORT, _REFUSAL = "descriptor", "report", "refusal"


def content_of(descriptor: bytes) -> RecordDict:
    """What opens a round. Raises WireError where the descriptor is too long."""
    _bounded(descriptor, limit_bytes=MAX_DESCRIPTOR_BYTES, what="descriptor of a round")
    return _record(_DESCRIPTOR, descriptor)


def descriptor_of(message: Message) -> bytes:
    """The descriptor that a message carries. Raises WireError where it carries anything else."""
    value = _only(message, _DESCRIPTOR)
    if not isinstance(value, bytes):
        raise WireError("message that opens a round carries no bytes")
    return _bounded(value, limit_bytes=MAX_DESCRIPTOR_BYTES, what="descriptor of a round")


def number_of(config: Mapping[str, object], key: str) -> int:
    """A whole number of a run's or node's configuration, 0 where there is none. Raises ManifestError."""
    value = config.get(key, 0)
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ManifestError(f"{key} is {value!r}; expected a whole number from 0 to {MAX_NUMBER}")
    return value


def reply_of(report: bytes) -> RecordDict:
    """What a round's end is answered with. Raises WireError where the report is too long."""
    _bounded(report, limit_bytes=MAX_REPORT_BYTES, what="report of a round")
    return _record(_REPORT, report)


def refusal_of(sentence: str) -> RecordDict:
    """What is answered where a round could not be streamed: one sentence."""
    return _record(_REFUSAL, sentence[:MAX_SENTENCE])


def reading_of(message: Message) -> bytes | str:
    """A reply's report, or the sentence that came in its place; never raises."""
    if message.has_error():
        return f"Flower says: {_shown(message.error.reason or 'no reason')}"
    try:
        if _REFUSAL in message.content.config_records.get(_RECORD, {}):
            return _shown(str(_only(message, _REFUSAL)))
        value = _only(message, _REPORT)
        if not isinstance(value, bytes):
            return "it answered with something else than a report"
        return _bounded(value, limit_bytes=MAX_REPORT_BYTES, what="its report")
    except WireError as error:
        return str(error)


def _record(key: str, value: bytes | str) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({key: value})})


def _only(message: Message, key: str) -> object:
    """The value under `key`, where the message has one record with one value."""
    records = message.content
    if len(records) != 1 or _RECORD not in records.config_records:
        raise WireError("message of a round carries other records than one; expected only settings")
    record = records.config_records[_RECORD]
    if set(record) != {key}:
        raise WireError(f"message of a round carries other values than one {key}")
    return record[key]


def _bounded(value: bytes, *, limit_bytes: int, what: str) -> bytes:
    if len(value) > limit_bytes:
        raise WireError(f"{what} has {len(value)} bytes; expected {limit_bytes} at most")
    return value


def _shown(text: str) -> str:
    """A peer's words, without anything that could move a cursor on a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_SENTENCE])
