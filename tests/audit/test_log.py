"""The log on a real disk: what a crash, a full disk and a meddler each do to it."""

import errno
import fcntl
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import log as log_module
from splitlearn.audit.checkpoint import Checkpoint, parse_verifier_key
from splitlearn.audit.log import CHECKPOINT_RECORDS, CHECKPOINT_S, Log, read_heads, read_lines
from splitlearn.audit.merkle import leaf_hash, root_of
from splitlearn.audit.records import Checkpointed, Gap, decode
from splitlearn.errors import AuditError
from tests.audit.test_records import OPEN, PAYLOAD
from tests.door import SIGNER

ORIGIN = "example.org/clinic/news"


class Clock:
    def __init__(self) -> None:
        self.now = 1.7e9

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, *, clock: Callable[[], float] | None = None) -> Log:
    return Log.open(folder, origin=ORIGIN, signer=SIGNER, clock=clock or Clock())


def lines(folder: Path) -> list[bytes]:
    return [line for line, _ in read_lines(folder)]


def crash(log: Log) -> None:
    """What the end of its process leaves: no head, no closing record, files and lock let go."""
    log._release()


@contextmanager
def no_room_after(path: Path, *, extra: int) -> Iterator[None]:
    """Every file that grows more than `extra` bytes beyond `path`'s size meets a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def segment(folder: Path, number: int = 0) -> Path:
    return folder / "log" / f"{number:06}.jsonl"


def test_a_record_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for index in range(3):
        assert log.append(PAYLOAD) == index
        record = decode(lines(tmp_path)[-1])
        assert (record.seq, record.time) == (index, 1.7e9)
    log.close()


def test_the_head_that_is_signed_is_the_root_of_the_lines_in_the_file(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(5):
        log.append(PAYLOAD)
    head = log.checkpoint()
    written = lines(tmp_path)
    assert head.size == len(written) == 6
    assert head.root == root_of([leaf_hash(line) for line in written])
    (size, note) = next(read_heads(tmp_path))
    _, public_key = parse_verifier_key((tmp_path / "verifier.key").read_text())
    assert Checkpoint.open(note, origin=ORIGIN, public_key=public_key) == head
    assert size == 6
    marker = decode(written[-1])
    assert isinstance(marker, Checkpointed)
    assert marker.root == root_of([leaf_hash(line) for line in written[:5]]).hex()
    log.close()


def test_nothing_new_gets_no_new_head(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)
    assert log.checkpoint() == log.checkpoint()
    assert log.size == 2
    log.close()


def test_a_head_is_signed_after_so_many_records_and_so_many_seconds(tmp_path: Path) -> None:
    clock = Clock()
    log = opened(tmp_path, clock=clock)
    for _ in range(CHECKPOINT_RECORDS):
        log.append(PAYLOAD)
    assert [size for size, _ in read_heads(tmp_path)] == [CHECKPOINT_RECORDS + 1]
    log.append(PAYLOAD)
    clock.now += CHECKPOINT_S
    log.append(PAYLOAD)
    clock.now -= 3600  # a clock that is set back must not put heads off for an hour
    log.append(PAYLOAD)
    assert len(list(read_heads(tmp_path))) == 3
    log.close()


def test_files_are_closed_to_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "audit"
    with opened(folder) as log:
        log.append(PAYLOAD)
    for path in (folder, *folder.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_log_that_was_closed_goes_on_without_a_gap(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(OPEN)
    with opened(tmp_path) as log:
        assert log.append(PAYLOAD) == 2
    kinds = [type(decode(line)).__name__ for line in lines(tmp_path)]
    assert kinds == ["RunOpen", "Checkpointed", "Payload", "Checkpointed"]


def test_opening_and_closing_a_closed_log_changes_no_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(OPEN)
    before = segment(tmp_path).read_bytes()
    opened(tmp_path).close()
    assert segment(tmp_path).read_bytes() == before


def test_a_log_that_was_not_closed_goes_on_after_a_gap(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)
    crash(log)
    with opened(tmp_path) as log:
        assert log.size == 2
    gap = decode(lines(tmp_path)[1])
    assert isinstance(gap, Gap)
    assert gap.torn_bytes == 0


@pytest.mark.parametrize("kept", [1, 50, -1])
def test_a_line_torn_by_a_crash_is_dropped_and_named(tmp_path: Path, kept: int) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)
    whole = segment(tmp_path).read_bytes()
    log.append(PAYLOAD)
    crash(log)
    torn = segment(tmp_path).read_bytes()[len(whole) :][:kept]
    segment(tmp_path).write_bytes(whole + torn)
    with opened(tmp_path) as log:
        log.append(PAYLOAD)
    first, gap, *_ = (decode(line) for line in lines(tmp_path))
    assert segment(tmp_path).read_bytes().startswith(whole)
    assert isinstance(gap, Gap)
    assert (first.seq, gap.seq, gap.torn_bytes) == (0, 1, len(torn))


def test_what_a_run_has_spent_is_remembered_over_a_restart(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)
    log.append(PAYLOAD)
    crash(log)
    with opened(tmp_path) as log:
        assert log.spent("news") == {"activation": 2000}
        assert log.spent("other") == {}


def test_a_log_goes_over_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RECORDS_PER_SEGMENT", 4)
    log = opened(tmp_path)
    for _ in range(9):
        log.append(PAYLOAD)
    crash(log)
    assert [len(segment(tmp_path, n).read_bytes().splitlines()) for n in range(3)] == [4, 4, 1]
    with opened(tmp_path) as log:
        assert log.append(PAYLOAD) == 10
    assert [decode(line).seq for line in lines(tmp_path)] == list(range(12))
    segment(tmp_path, 1).unlink()
    with pytest.raises(AuditError, match=r"000001\.jsonl is missing"):
        opened(tmp_path)


def test_a_torn_first_line_of_a_file_takes_nothing_from_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "RECORDS_PER_SEGMENT", 4)
    log = opened(tmp_path)
    for _ in range(4):
        log.append(PAYLOAD)
    crash(log)
    before = segment(tmp_path).read_bytes()
    segment(tmp_path, 1).write_bytes(b'{"type":')
    with opened(tmp_path) as log:
        assert log.size == 5
    assert segment(tmp_path).read_bytes() == before
    assert isinstance(decode(lines(tmp_path)[4]), Gap)


def test_a_torn_line_that_is_not_the_last_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "RECORDS_PER_SEGMENT", 4)
    log = opened(tmp_path)
    for _ in range(6):
        log.append(PAYLOAD)
    crash(log)
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[:-1])
    with pytest.raises(AuditError, match="breaks off in the middle"):
        opened(tmp_path)


def _flip(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"wire_bytes":1000', b'"wire_bytes":1001', 1))


def _drop_first(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def _drop_last(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _swap(path: Path) -> None:
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([second, first, *rest]))


def _garbage(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"{}\n")


@pytest.mark.parametrize(
    ("meddle", "says"),
    [
        (_flip, "a record was changed"),
        (_drop_first, "added, dropped or swapped"),
        (_drop_last, "dropped from its end"),
        (_swap, "added, dropped or swapped"),
        (_garbage, "not a record"),
    ],
)
def test_a_log_that_was_meddled_with_is_not_gone_on_with(
    tmp_path: Path, meddle: Callable[[Path], None], says: str
) -> None:
    with opened(tmp_path) as log:
        for _ in range(4):
            log.append(PAYLOAD)
    meddle(segment(tmp_path))
    with pytest.raises(AuditError, match=says):
        opened(tmp_path)


def test_a_log_that_cannot_be_read_is_not_gone_on_with(tmp_path: Path) -> None:
    opened(tmp_path).close()
    segment(tmp_path).unlink()
    segment(tmp_path).mkdir()
    with pytest.raises(AuditError, match="cannot be read"):
        opened(tmp_path)
    segment(tmp_path).rmdir()
    (tmp_path / "checkpoints" / "4.note").mkdir()
    with pytest.raises(AuditError, match="cannot be read"):
        opened(tmp_path)


def test_a_torn_line_that_the_disk_will_not_drop_opens_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, length: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    opened(tmp_path).close()
    segment(tmp_path).write_bytes(b'{"type":')
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(AuditError, match="Read-only"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["4.note", "x.note"])
def test_a_head_that_is_not_one_stops_the_log(tmp_path: Path, name: str) -> None:
    opened(tmp_path).close()
    (tmp_path / "checkpoints" / name).write_text("nonsense\n")
    with pytest.raises(AuditError):
        opened(tmp_path)


def test_another_key_or_name_does_not_go_on_with_a_log(tmp_path: Path) -> None:
    opened(tmp_path).close()
    other = Ed25519PrivateKey.generate()
    with pytest.raises(AuditError, match="belongs to"):
        Log.open(tmp_path, origin=ORIGIN, signer=other, clock=Clock())
    with pytest.raises(AuditError, match="belongs to"):
        Log.open(tmp_path, origin="example.org/clinic/old", signer=SIGNER, clock=Clock())


def test_a_full_disk_kills_the_log_and_leaves_no_half_line(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)
    before = segment(tmp_path).read_bytes()
    full = no_room_after(segment(tmp_path), extra=100)
    with full, pytest.raises(AuditError, match=r"File too large.*nothing is sent"):
        log.append(PAYLOAD)
    assert segment(tmp_path).read_bytes() == before
    # There is room again, but a dead log stays dead until somebody starts anew.
    for act in (lambda: log.append(PAYLOAD), log.checkpoint):
        with pytest.raises(AuditError, match="takes no more records"):
            act()
    log.close()
    assert segment(tmp_path).read_bytes() == before
    with opened(tmp_path) as log:
        assert isinstance(decode(lines(tmp_path)[-1]), Gap)


def test_a_head_that_cannot_be_written_kills_the_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)
    (tmp_path / "checkpoints").rmdir()
    with pytest.raises(AuditError, match="cannot be written"):
        log.checkpoint()
    with pytest.raises(AuditError, match="takes no more records"):
        log.append(PAYLOAD)
    log.close()


def test_a_disk_that_is_gone_kills_the_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    os.close(log._segment)
    with pytest.raises(AuditError, match="may be unfinished"):
        log.append(PAYLOAD)
    log._segment = -1
    log.close()


def test_a_key_file_that_cannot_be_read_opens_no_log(tmp_path: Path) -> None:
    (tmp_path / "verifier.key").mkdir()
    with pytest.raises(AuditError, match=r"verifier\.key"):
        opened(tmp_path)


def test_a_disk_that_is_full_from_the_start_opens_no_log(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with no_room_after(tmp_path / "empty", extra=20), pytest.raises(AuditError):
        opened(tmp_path / "audit")


def test_a_folder_that_cannot_be_written_opens_no_log(tmp_path: Path) -> None:
    """A file where a folder is needed stops the superuser too."""
    (tmp_path / "file").touch()
    with pytest.raises(AuditError, match="cannot be written"):
        opened(tmp_path / "file" / "audit")


def test_a_folder_of_somebody_else_opens_no_log(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        with pytest.raises(AuditError, match="cannot be written"):
            opened(tmp_path / "audit")
    finally:
        if root:
            os.seteuid(0)
        tmp_path.chmod(0o700)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(AuditError, match="another process"):
        opened(tmp_path)
    log.close()
    opened(tmp_path).close()


def test_a_writer_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from tests.audit.test_log import opened, PAYLOAD\n"
        "from pathlib import Path\n"
        f"log = opened(Path({str(tmp_path)!r}))\n"
        "log.append(PAYLOAD)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, check=False)
    assert done.returncode == -9
    with opened(tmp_path) as log:
        assert log.size == 2


def test_the_segment_is_not_opened_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    (folder / "log").mkdir(parents=True)
    segment(folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditError):
        opened(folder)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").touch()
    with pytest.raises(AuditError, match="cannot be written"):
        opened(folder)
    assert not (tmp_path / "elsewhere").read_bytes()


def test_threads_append_one_after_the_other(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        threads = [
            threading.Thread(target=lambda: [log.append(PAYLOAD) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [decode(line).seq for line in lines(tmp_path)] == list(range(201))


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.close()
    log.close()
    with pytest.raises(AuditError, match="it was closed"):
        log.append(PAYLOAD)


def test_the_lock_is_one_that_other_programs_see(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with (tmp_path / ".lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    log.close()


def test_a_log_closed_right_after_a_signed_head_has_no_gap_when_it_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        log = opened(tmp_path)
        log.append(PAYLOAD)
        log.checkpoint()
        log.close()
    records = [decode(line) for line, _ in read_lines(tmp_path)]
    assert not any(isinstance(record, Gap) for record in records)


def test_an_interrupt_between_writing_and_counting_leaves_a_log_that_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    log.append(PAYLOAD)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log._tree, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(PAYLOAD)
    with pytest.raises(AuditError):
        log.append(PAYLOAD)
    crash(log)
    again = opened(tmp_path)
    again.append(PAYLOAD)
    again.close()
    kinds = [type(decode(line)).__name__ for line in lines(tmp_path)]
    assert kinds == ["Payload", "Payload", "Gap", "Payload", "Checkpointed"]
