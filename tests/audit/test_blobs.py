"""Sealed frames on a real disk: what opens them, what does not, and that a destroyed one is gone."""

import hashlib
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

from splitlearn.audit.blobs import RUN_KEY, Blobs, key_path, parse_run_key, sealed_path
from splitlearn.errors import AuditError
from tests.audit.test_log import no_room_after

RAW = b"SPLN" + bytes(range(256)) * 40


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs.open(tmp_path, create=True)


def test_what_was_kept_reads_back_and_its_name_is_its_digest(blobs: Blobs, tmp_path: Path) -> None:
    name = blobs.keep(RAW)
    assert hashlib.sha256(sealed_path(tmp_path, name).read_bytes()).hexdigest() == name
    assert blobs.read(name) == RAW
    assert Blobs.open(tmp_path, create=False).read(name) == RAW


def test_one_frame_kept_twice_has_two_names_and_two_keys(blobs: Blobs, tmp_path: Path) -> None:
    one, two = blobs.keep(RAW), blobs.keep(RAW)
    assert one != two
    run_key = parse_run_key((tmp_path / RUN_KEY).read_bytes())
    keys = {aes_key_unwrap(run_key, key_path(tmp_path, name).read_bytes()) for name in (one, two)}
    assert len(keys) == 2


def test_nothing_of_a_frame_lies_on_the_disk_in_clear(blobs: Blobs, tmp_path: Path) -> None:
    blobs.keep(RAW)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert RAW[:16] not in path.read_bytes()


def test_files_and_folders_are_closed_to_others(blobs: Blobs, tmp_path: Path) -> None:
    name = blobs.keep(RAW)
    for path in (tmp_path / RUN_KEY, sealed_path(tmp_path, name), key_path(tmp_path, name)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700
    assert not list(tmp_path.rglob(".*"))


def test_a_run_key_handed_over_opens_a_copy_without_one(blobs: Blobs, tmp_path: Path) -> None:
    name = blobs.keep(RAW)
    run_key = parse_run_key((tmp_path / RUN_KEY).read_bytes())
    (tmp_path / RUN_KEY).unlink()
    copy = Blobs.open(tmp_path, create=False)
    with pytest.raises(AuditError, match="ask the log's owner"):
        copy.read(name)
    assert copy.read(name, run_key=run_key) == RAW
    with pytest.raises(AuditError, match="does not open"):
        copy.read(name, run_key=bytes(32))


def test_a_changed_frame_or_key_is_refused(blobs: Blobs, tmp_path: Path) -> None:
    name, other = blobs.keep(RAW), blobs.keep(RAW)
    key_path(tmp_path, name).write_bytes(key_path(tmp_path, other).read_bytes())
    with pytest.raises(AuditError, match="does not open"):
        blobs.read(name)
    key_path(tmp_path, other).write_bytes(b"short")
    with pytest.raises(AuditError, match="does not open"):
        blobs.read(other)
    sealed_path(tmp_path, other).write_bytes(b"other")
    with pytest.raises(AuditError, match="was changed"):
        blobs.read(other)


def test_a_shredded_frame_opens_no_more_even_from_a_copy_of_its_bytes(
    blobs: Blobs, tmp_path: Path
) -> None:
    name, other = blobs.keep(RAW), blobs.keep(RAW)
    copy = sealed_path(tmp_path, name).read_bytes()
    blobs.shred(name)
    assert not key_path(tmp_path, name).exists()
    sealed_path(tmp_path, name).write_bytes(copy)
    with pytest.raises(AuditError, match="cannot be read"):
        blobs.read(name)
    assert blobs.read(other) == RAW
    blobs.shred(name)


def test_the_bytes_of_a_shredded_key_are_overwritten(blobs: Blobs, tmp_path: Path) -> None:
    name = blobs.keep(RAW)
    (tmp_path / "witness").hardlink_to(key_path(tmp_path, name))
    before = (tmp_path / "witness").read_bytes()
    blobs.shred(name)
    after = (tmp_path / "witness").read_bytes()
    assert len(after) == len(before) == 40
    assert after != before


@pytest.mark.parametrize("name", ["", "../log/000000", "f" * 63, "F" * 64, "f" * 64 + "\n"])
def test_a_name_that_is_none_reaches_no_path(blobs: Blobs, name: str) -> None:
    blobs.keep(RAW)
    for act in (blobs.read, blobs.shred):
        with pytest.raises(AuditError, match="not the name"):
            act(name)


def test_where_none_are_kept_none_open(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no frames are kept"):
        Blobs.open(tmp_path, create=False)


@pytest.mark.parametrize("text", [b"", b"00", b"g" * 64, b"0" * 64 + b" 1"])
def test_a_run_key_that_is_none_is_refused_and_not_quoted(tmp_path: Path, text: bytes) -> None:
    (tmp_path / RUN_KEY).write_bytes(text)
    with pytest.raises(AuditError, match="64 hexadecimal digits"):
        Blobs.open(tmp_path, create=True)


def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(blobs: Blobs, tmp_path: Path) -> None:
    blobs.keep(RAW)
    (tmp_path / "empty").touch()
    with (
        no_room_after(tmp_path / "empty", extra=1000),
        pytest.raises(AuditError, match="make room"),
    ):
        blobs.keep(RAW)
    assert not list((tmp_path / "blobs").glob(".*"))
    assert len(list((tmp_path / "blobs").glob("*.sealed"))) == 1


def test_what_cannot_be_destroyed_is_said_so(blobs: Blobs, tmp_path: Path) -> None:
    name = blobs.keep(RAW)
    key_path(tmp_path, name).unlink()
    key_path(tmp_path, name).mkdir()
    with pytest.raises(AuditError, match="cannot be destroyed"):
        blobs.shred(name)


def test_a_file_that_grew_beyond_a_frame_is_not_read(blobs: Blobs, tmp_path: Path) -> None:
    name = blobs.keep(RAW)
    key_path(tmp_path, name).write_bytes(bytes(2000))
    with pytest.raises(AuditError, match="longer than"):
        blobs.read(name)
