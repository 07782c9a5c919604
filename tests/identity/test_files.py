import os
import threading
from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.identity import files


def test_a_private_file_is_closed_to_others_from_its_first_byte(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = files.make_folder(tmp_path / "a" / "b")
        files.write(folder / "key", b"secret")
        files.write(folder / "crt", b"public", mode=files.PUBLIC)
    finally:
        os.umask(old)
    assert files.mode_of(folder) == 0o700
    assert files.mode_of(folder / "key") == 0o600
    assert files.mode_of(folder / "crt") == 0o644
    assert files.read_private(folder / "key") == b"secret"


def test_a_write_replaces_the_whole_file_and_leaves_no_draft(tmp_path: Path) -> None:
    files.write(tmp_path / "file", b"long and old")
    files.write(tmp_path / "file", b"new")
    assert files.read(tmp_path / "file") == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(ManifestError, match=r"cannot be written"):
        files.write(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_key_that_others_may_read_is_not_read(tmp_path: Path) -> None:
    files.write(tmp_path / "key", b"secret", mode=files.PUBLIC)
    with pytest.raises(ManifestError, match=r"0644.*chmod 600") as caught:
        files.read_private(tmp_path / "key")
    assert "secret" not in str(caught.value)


def test_a_missing_or_too_long_file_is_a_manifest_error(tmp_path: Path) -> None:
    for act in (files.read, files.read_private, files.mode_of):
        with pytest.raises(ManifestError, match=r"cannot be read"):
            act(tmp_path / "none")
    files.write(tmp_path / "long", b"12345")
    with pytest.raises(ManifestError, match=r"longer than 4 bytes"):
        files.read(tmp_path / "long", limit_bytes=4)


def test_appended_lines_stand_in_order(tmp_path: Path) -> None:
    files.append(tmp_path / "lines", b"a\n")
    files.append(tmp_path / "lines", b"b\n")
    assert files.read_private(tmp_path / "lines") == b"a\nb\n"


def test_what_cannot_be_made_locked_or_appended_to_is_a_manifest_error(tmp_path: Path) -> None:
    files.write(tmp_path / "file", b"")
    with pytest.raises(ManifestError, match=r"cannot be created"):
        files.make_folder(tmp_path / "file")
    with pytest.raises(ManifestError, match=r"cannot be locked"), files.locked(tmp_path / "none"):
        pass
    with pytest.raises(ManifestError, match=r"cannot be written"):
        files.append(tmp_path, b"")


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    files.write(tmp_path / "count", b"0")

    def count() -> None:
        for _ in range(20):
            with files.locked(tmp_path):
                number = int(files.read(tmp_path / "count"))
                files.write(tmp_path / "count", str(number + 1).encode())

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files.read(tmp_path / "count") == b"80"


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManifestError, match=r"cannot be locked"), files.locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
