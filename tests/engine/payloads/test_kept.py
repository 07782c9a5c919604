"""Rows between epochs: private, bounded, gone; and the names they are kept under."""

import gc
import os
import stat
from pathlib import Path

import pytest
import torch

from splitlearn.codecs import NOBODY
from splitlearn.engine.payloads.kept import Kept, Namer
from splitlearn.errors import AuditError, SessionError
from splitlearn.roles import Kind

A, B = b"a" * 8, b"b" * 8


def open_files(folder: Path) -> list[os.stat_result]:
    """What this process has open below a folder, with or without a name."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()).startswith(str(folder)):
                found.append(entry.stat())
        except OSError:  # the one that lists them
            continue
    return found


def test_rows_come_back_as_they_were_put_by_kind_sample_and_shape(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    x_ND, y_ND = torch.randn(3, 5), torch.randn(4, 5)
    kept.of(Kind.ACTIVATION).put(A, x_ND)
    kept.of(Kind.OUTPUT).put(A, y_ND)
    kept.of(Kind.ACTIVATION).put(B, y_ND)
    found = kept.of(Kind.ACTIVATION).get(A, rows=3, width=5)
    assert found is not None
    assert torch.equal(found, x_ND)
    kept.put(Kind.ACTIVATION, A, x_ND + 1)
    again = kept.get(Kind.ACTIVATION, A, rows=3, width=5)
    assert again is not None
    assert torch.equal(again, x_ND + 1)
    output = kept.get(Kind.OUTPUT, A, rows=4, width=5)
    assert output is not None
    assert torch.equal(output, y_ND)
    assert kept.get(Kind.ACTIVATION, A, rows=5, width=3) is None
    assert kept.get(Kind.OUTPUT, B, rows=4, width=5) is None


def test_the_file_has_no_name_is_its_owners_and_goes_with_what_kept_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    kept.put(Kind.OUTPUT, A, torch.ones(2, 2))
    assert list((tmp_path / "run").iterdir()) == []
    (file,) = open_files(tmp_path)
    assert stat.S_IMODE(file.st_mode) == 0o600
    kept.clear()
    assert open_files(tmp_path) == []
    assert kept.get(Kind.OUTPUT, A, rows=2, width=2) is None
    kept.put(Kind.OUTPUT, A, torch.ones(2, 2))
    assert len(open_files(tmp_path)) == 1
    del kept
    gc.collect()
    assert open_files(tmp_path) == []


def test_more_than_the_limit_is_refused_and_small_rows_are_not_free(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit_bytes=4096)
    for i in range(7):
        kept.put(Kind.OUTPUT, i.to_bytes(8, "big"), torch.ones(1, 1))
        kept.put(Kind.OUTPUT, bytes(8), torch.ones(1, 1))  # in its place again
    with pytest.raises(SessionError, match=r"run\.cache_mb"):
        kept.put(Kind.OUTPUT, A, torch.ones(1, 1))
    assert kept.get(Kind.OUTPUT, A, rows=1, width=1) is None


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AuditError, match="cannot be kept"):
        Kept(tmp_path / "file").put(Kind.OUTPUT, A, torch.ones(1, 1))


def test_a_pseudonym_is_a_samples_in_one_run_only() -> None:
    one, again, other = (Namer(secret, widths=(8,)) for secret in (b"1" * 32, b"1" * 32, b"2" * 32))
    first = one.name((0, 1, 2), spans=(3, 4, 5))
    assert len(set(first)) == 3
    assert NOBODY not in first
    assert one.name((2, 0), spans=(5, 3)) == (first[2], first[0])
    assert again.name((0, 1, 2), spans=(3, 4, 5)) == first
    assert not set(other.name((0, 1, 2), spans=(3, 4, 5))) & set(first)


def test_what_finds_no_room_or_has_another_length_is_nobody() -> None:
    namer = Namer(b"secret", widths=(8, 4), limit_bytes=3 * (2 * 512 + 4 * 10 * 12))
    names = namer.name(range(5), spans=(10,) * 5)
    assert names[3:] == (NOBODY, NOBODY)
    assert namer.name((4, 1), spans=(10, 10)) == (NOBODY, names[1])
    assert namer.name((1,), spans=(9,)) == (NOBODY,)
    assert namer.name((), spans=(9, 9)) == (NOBODY, NOBODY)
    namer.clear()
    assert namer.name((4,), spans=(10,)) != (NOBODY,)


def test_who_is_named_finds_room_at_both_parties(tmp_path: Path) -> None:
    limit = 20_000
    namer, kept = (
        Namer(b"secret", widths=(8, 4), limit_bytes=limit),
        Kept(tmp_path, limit_bytes=limit),
    )
    spans = [1 + i % 7 for i in range(40)]
    names = namer.name(range(40), spans=spans)
    assert NOBODY in names
    for name, rows in zip(names, spans, strict=True):
        if name != NOBODY:
            kept.put(Kind.ACTIVATION, name, torch.ones(rows, 8))
            kept.put(Kind.OUTPUT, name, torch.ones(rows, 4))
