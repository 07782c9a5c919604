"""Reading a log, finished or growing: every whole line once, in order, over segments."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splitlearn.audit import follow_records, read_records
from splitlearn.audit import log as log_module
from splitlearn.audit.reading import MAX_LINE_BYTES
from splitlearn.audit.records import Checkpointed, Payload, encode
from splitlearn.errors import AuditError
from tests.audit.test_log import opened, segment
from tests.audit.test_records import PAYLOAD


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RECORDS_PER_SEGMENT", 3)


def test_every_record_is_read_with_its_index(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for _ in range(4):
            log.append(PAYLOAD)
    found = list(read_records(tmp_path))
    assert [index for index, _ in found] == [0, 1, 2, 3, 4]
    assert [type(record) for _, record in found] == [Payload] * 4 + [Checkpointed]
    assert [record.seq for _, record in found] == [0, 1, 2, 3, 4]


def test_a_line_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(PAYLOAD)
    with segment(tmp_path).open("ab") as file:
        file.write(encode(PAYLOAD)[:-1])
    assert len(list(read_records(tmp_path))) == 2


@pytest.mark.parametrize("read", [read_records, lambda f: follow_records(f, wait=lambda: False)])
def test_a_line_that_is_no_record_is_named(
    tmp_path: Path, read: Callable[[Path], Iterator[object]]
) -> None:
    with opened(tmp_path) as log:
        log.append(PAYLOAD)
    with segment(tmp_path).open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(AuditError, match="record 2"):
        list(read(tmp_path))


def test_a_log_is_followed_from_segment_to_segment(tmp_path: Path, short_segments: None) -> None:
    """What is read while the log grows is what stands in it at the end."""
    log = opened(tmp_path)
    left = list(range(10))

    def wait() -> bool:
        if not left:
            return False
        left.pop()
        log.append(PAYLOAD)
        return True

    found = list(follow_records(tmp_path, wait=wait))
    assert [index for index, _ in found] == list(range(10))
    log.close()
    assert [record for _, record in read_records(tmp_path)][:10] == [record for _, record in found]
    assert segment(tmp_path, 3).exists()


def test_half_a_line_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    line = encode(PAYLOAD)
    pieces = [line[:40], line[40:], line[:-1], line[-1:]]

    def wait() -> bool:
        if not pieces:
            return False
        with segment(tmp_path).open("ab") as file:
            file.write(pieces.pop(0))
        return True

    assert [record for _, record in follow_records(tmp_path, wait=wait)] == [PAYLOAD, PAYLOAD]


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    asked = iter([True, True, False])
    assert list(follow_records(tmp_path, wait=lambda: next(asked))) == []


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    segment(tmp_path).write_bytes(b"x" * (MAX_LINE_BYTES + 2**21))
    with pytest.raises(AuditError, match="no record"):
        list(follow_records(tmp_path, wait=lambda: True))


def test_a_log_that_was_taken_away_ends_it(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(PAYLOAD)

    def wait() -> bool:
        segment(tmp_path).unlink()
        return True

    assert len(list(follow_records(tmp_path, wait=wait))) == 2


def test_a_segment_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    segment(tmp_path).mkdir(parents=True)
    with pytest.raises(AuditError, match="cannot be read"):
        list(follow_records(tmp_path, wait=lambda: False))
