"""Filters over a log: each condition alone and together, on whole logs and growing ones."""

from pathlib import Path

import msgspec
import pytest

from splitlearn.audit.query import Filter, parse_span, select, type_of
from splitlearn.audit.records import Denied
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind
from tests.audit.pair import Pair
from tests.audit.test_log import opened
from tests.audit.test_records import EXAMPLES, OPEN, PAYLOAD
from tests.door import COMPUTE, TRUSTED

DENIED = Denied(
    run="old",
    direction="out",
    peer=COMPUTE.uri,
    kind=Kind.GRADIENT,
    rule="no-rule",
    policy="0" * 64,
)
RECORDS = (
    OPEN,
    msgspec.structs.replace(PAYLOAD, step=0, wire_bytes=10),
    msgspec.structs.replace(PAYLOAD, step=3, direction="in", kind=Kind.OUTPUT, wire_bytes=500),
    DENIED,
    msgspec.structs.replace(PAYLOAD, step=7, peer=TRUSTED.uri, run="old", blob="8" * 64),
)


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (Filter(), [0, 1, 2, 3, 4, 5]),
        (Filter(types=frozenset({"payload"})), [1, 2, 4]),
        (Filter(types=frozenset({"run.open", "denied", "checkpoint"})), [0, 3, 5]),
        (Filter(kinds=frozenset({"output", "gradient"})), [2, 3]),
        (Filter(run="old"), [3, 4]),
        (Filter(peer="farm"), [0, 1, 2, 3]),
        (Filter(peer="party/clinic"), [4]),
        (Filter(direction="out"), [1, 3, 4]),
        (Filter(verdict="allow"), [1, 2, 4]),
        (Filter(verdict="denied"), [3]),
        (Filter(step=(3, None)), [2, 4]),
        (Filter(step=(None, 3)), [1, 2]),
        (Filter(step=(3, 3)), [2]),
        (Filter(wire_bytes=(100, 600)), [2]),
        (Filter(wire_bytes=(None, 500)), [1, 2]),
        (Filter(kept=True), [4]),
        (Filter(peer="farm", direction="out", verdict="allow"), [1]),
        (Filter(run="none"), []),
    ],
)
def test_a_filter_lets_through_what_it_says(
    tmp_path: Path, wanted: Filter, indices: list[int]
) -> None:
    with opened(tmp_path) as log:
        for record in RECORDS:
            log.append(record)
    assert [index for index, _ in select(tmp_path, wanted)] == indices


def test_a_growing_log_is_filtered_as_it_grows(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.begin()
    left = [1, 2, 3]

    def wait() -> bool:
        if left:
            left.pop()
            pair.step()
            return True
        return False

    wanted = Filter(direction="in")
    found = list(select(pair.clinic.folder, wanted, wait=wait))
    assert [index for index, _ in found] == [2, 4, 6]
    pair.end()


def test_a_type_is_called_what_it_is_called_in_the_log() -> None:
    for record in EXAMPLES:
        assert f'"type":"{type_of(record)}"'.encode() in msgspec.json.encode(record)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("", (None, None)),
        (":", (None, None)),
        ("7", (7, 7)),
        ("3:9", (3, 9)),
        ("3:", (3, None)),
        (":9", (None, 9)),
    ],
)
def test_a_range_is_read(text: str, span: tuple[int | None, int | None]) -> None:
    assert parse_span(text, option="--step") == span


@pytest.mark.parametrize("text", ["a", "1:b", "-1", "1:2:3", "1 ", "9" * 30])
def test_what_is_no_range_is_the_callers_mistake(text: str) -> None:
    with pytest.raises(ManifestError, match="--step"):
        parse_span(text, option="--step")
