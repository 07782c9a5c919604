"""Copies for outsiders: they verify, they hold no key, and two of them are the same."""

import csv
import io
import json
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from splitlearn.audit.blobs import Blobs
from splitlearn.audit.records import encode
from splitlearn.errors import ManifestError
from splitlearn.report.export import COLUMNS, Contents, _Source, export
from splitlearn.roles import Kind
from tests.report.logs import DENIED, OPEN, PAYLOAD, Talk, checked, eventful, opened, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a sealed frame, and with files that are nobody's business."""
    folder = tmp_path / "audit"
    with opened(folder) as written:
        talk = Talk(written)
        blob = Blobs.open(folder, create=True).keep(b"a frame")
        talk.send(Kind.ACTIVATION, step=0, blob=blob)
        talk.steps(range(4))
        talk.swap(size=20)
        talk.close()
    for name in ("salt", "log/notes.txt", "blobs/mine.txt", "checkpoints/.5.note.draft"):
        (folder / name).write_text("secret")
    return folder


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_verifies_and_holds_nothing_else(log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    written = export(log, copy, contents=Contents())
    assert names(copy) == set(written)
    assert not any("blobs" in name or "secret" in (copy / name).read_text() for name in written)
    assert {name.split("/")[0] for name in written} == {
        "log",
        "checkpoints",
        "peers",
        "verifier.key",
    }
    assert checked(copy).exit == checked(log).exit == 0
    for path in copy.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_an_eventful_log_verifies_as_before(tmp_path: Path) -> None:
    folder = eventful(tmp_path / "audit", steps=10)
    copy = tmp_path / "copy"
    export(folder, copy, contents=Contents())
    one, two = checked(folder), checked(copy)
    assert [f.sentence for f in one.findings] == [f.sentence for f in two.findings]


def test_sealed_frames_and_their_key_come_only_when_asked_for(log: Path, tmp_path: Path) -> None:
    sealed = set(export(log, tmp_path / "a", contents=Contents(blobs=True)))
    assert {name.rsplit(".")[-1] for name in sealed if name.startswith("blobs")} == {
        "sealed",
        "key",
    }
    assert "blobs.key" not in sealed
    both = set(export(log, tmp_path / "b", contents=Contents(blobs=True, run_key=True)))
    assert both - sealed == {"blobs.key"}
    (name,) = {Path(each).stem for each in sealed if each.startswith("blobs/")}
    assert Blobs.open(tmp_path / "b", create=False).read(name) == b"a frame"
    with pytest.raises(ManifestError, match="give both"):
        export(log, tmp_path / "c", contents=Contents(run_key=True))


def test_two_archives_of_one_log_are_the_same(log: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    export(log, one, contents=Contents(table="csv"))
    for path in log.rglob("*"):
        os.utime(path, (1, 1))
    export(log, two, contents=Contents(table="csv"))
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        members = archive.getmembers()
        assert [each.name for each in members] == sorted(each.name for each in members)
        assert {(each.mtime, each.uid, each.gid, each.uname, each.mode) for each in members} == {
            (0, 0, 0, "", 0o644)
        }
        archive.extractall(tmp_path / "out", filter="data")
    assert checked(tmp_path / "out").exit == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit",
        "one.tar",
        "out",
        "two.tar",
    ]


def test_a_table_has_one_flat_row_a_record(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "a", contents=Contents(table="csv"))
    export(log, tmp_path / "b", contents=Contents(table="jsonl"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a" / "records.csv").read_text())))
    records = checked(log).records
    assert [int(row["seq"]) for row in rows] == list(range(records))
    assert tuple(rows[0]) == COLUMNS
    sent = rows[1]
    assert (sent["kind"], sent["rule"], sent["wire_bytes"]) == ("activation", "activation", "16900")
    assert rows[0]["peer"] == OPEN.peer.id
    lines = (tmp_path / "b" / "records.jsonl").read_text().splitlines()
    flat = [json.loads(line) for line in lines]
    assert [{k: str(v) for k, v in each.items()} for each in flat] == [
        {k: v for k, v in row.items() if v} for row in rows
    ]


def test_no_text_of_a_log_is_a_formula(tmp_path: Path) -> None:
    nasty = msgspec.structs.replace(DENIED, rule='=HYPERLINK("http://x")', run="@x", peer="-1,\n2")
    export(write(tmp_path / "a", nasty), tmp_path / "b", contents=Contents(table="csv"))
    (row, _) = csv.DictReader(io.StringIO((tmp_path / "b" / "records.csv").read_text()))
    assert (row["rule"][:2], row["run"], row["peer"]) == ("'=", "'@x", "'-1,\n2")


def test_a_broken_line_has_a_row_and_an_unfinished_one_has_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", PAYLOAD)
    with (folder / "log" / "000000.jsonl").open("ab") as file:
        file.write(b"nonsense\n" + encode(PAYLOAD)[:-9])
    export(folder, tmp_path / "b", contents=Contents(table="jsonl"))
    lines = (tmp_path / "b" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["payload", "checkpoint", "unreadable"]
    copied = (tmp_path / "b" / "log" / "000000.jsonl").read_bytes()
    assert copied == (folder / "log" / "000000.jsonl").read_bytes()


def test_a_log_is_copied_while_it_is_written(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as log:
        log.append(OPEN)
        log.checkpoint()
        log.append(PAYLOAD)
        export(tmp_path / "a", tmp_path / "b", contents=Contents())
    assert {finding.name for finding in checked(tmp_path / "b").findings} == {
        "uncovered",
        "open",
        "unreceipted",
    }


def test_a_file_that_shrinks_while_it_is_copied_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "000000.jsonl"
    path.write_bytes(b"12345")
    assert b"".join(_Source("log/000000.jsonl", path, 4).chunks()) == b"1234"
    with pytest.raises(ManifestError, match="shorter"):
        list(_Source("log/000000.jsonl", path, 6).chunks())


def test_a_long_log_is_copied_whole(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", PAYLOAD)
    with (folder / "log" / "000000.jsonl").open("ab") as file:
        file.write(encode(PAYLOAD) * 3_001)
    export(folder, tmp_path / "b.tar", contents=Contents(table="jsonl"))
    with tarfile.open(tmp_path / "b.tar") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    copied = (tmp_path / "out" / "log" / "000000.jsonl").read_bytes()
    assert len(copied) > 2**20
    assert copied == (folder / "log" / "000000.jsonl").read_bytes()
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 3_003


def _link(log: Path) -> None:
    path = log / "log" / "000000.jsonl"
    path.rename(log / "elsewhere")
    path.symlink_to(log / "elsewhere")


def _pipe(log: Path) -> None:
    os.mkfifo(log / "checkpoints" / "77.note")


def _long(log: Path) -> None:
    (log / "checkpoints" / "77.note").write_bytes(bytes(70_000))


def _nothing(log: Path) -> None:
    (log / "log" / "000000.jsonl").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_link, "cannot be copied"),
        (_pipe, "ordinary file"),
        (_long, "not a file of ours"),
        (_nothing, "no log"),
    ],
)
def test_what_is_no_log_is_not_copied(log: Path, tmp_path: Path, damage: object, why: str) -> None:
    assert callable(damage)
    damage(log)
    with pytest.raises(ManifestError, match=why):
        export(log, tmp_path / "copy.tar", contents=Contents())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit"]


def test_nothing_is_written_over(log: Path, tmp_path: Path) -> None:
    for name in ("there", "there.tar"):
        (tmp_path / name).mkdir()
        with pytest.raises(ManifestError, match="exists"):
            export(log, tmp_path / name, contents=Contents())
