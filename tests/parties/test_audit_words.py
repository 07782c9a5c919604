"""What the audit commands share: keys, and text that a hostile log cannot use against its reader."""

from pathlib import Path

import pytest

from parties.audit_words import (
    MOST_LINES,
    check_log,
    finding_lines,
    key_of,
    printable,
    report_as_json,
    report_lines,
    verdict_line,
)
from splitlearn.audit import Blobs, Exit, Finding, verify
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind
from tests.audit.pair import CLINIC_KEY, FARM_KEY, Pair


def test_what_could_move_a_cursor_is_shown_as_a_question_mark() -> None:
    assert printable("a\x1b[2Jb\nc\u202ed") == "a?[2Jb?c?d"
    assert printable("Zürich 3") == "Zürich 3"
    (line,) = finding_lines([Finding(Exit.INTEGRITY, "line", "\x07bell", 3)])
    assert line.startswith("FAULT line")
    assert "record 3: ?bell" in line
    (remark,) = finding_lines([Finding(Exit.CLEAN, "open", "under way")])
    assert remark.startswith("note")
    assert "record" not in remark


def test_of_many_findings_of_one_name_the_first_are_shown() -> None:
    many = [Finding(Exit.INTEGRITY, "order", f"{n}", n) for n in range(MOST_LINES + 5)]
    lines = finding_lines([*many, Finding(Exit.CLEAN, "open", "under way")])
    assert len(lines) == MOST_LINES + 2
    assert "order" in lines[-1]
    assert "and 5 more" in lines[-1]


def test_a_key_is_given_in_words_or_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "farm.key"
    path.write_text(FARM_KEY + "\n")
    assert key_of("", option="--key") is None
    assert key_of(FARM_KEY, option="--key") == FARM_KEY
    assert key_of(str(path), option="--key") == FARM_KEY + "\n"
    path.write_bytes(b"\xff")
    for told in ("a+b+c", "none.key", str(path)):
        with pytest.raises(ManifestError, match="--key"):
            key_of(told, option="--key")


def test_a_folder_that_is_none_is_the_callers_mistake(tmp_path: Path) -> None:
    check_log(tmp_path)
    with pytest.raises(ManifestError, match="not a folder"):
        check_log(tmp_path / "none")


def test_a_report_says_the_same_in_words_and_as_json(tmp_path: Path) -> None:
    folder = Pair(tmp_path).run().clinic.folder
    report = verify(folder, verifier_key=CLINIC_KEY, peer_keys=(FARM_KEY,))
    data = report_as_json(report)
    text = "\n".join(report_lines(report))
    assert data["ok"] is True
    assert data["countersigned"] == {"compute.farm.example.org": 16}
    assert "16 of them countersigned by compute.farm.example.org" in text
    assert (data["receipts"], data["unreceipted"]) == (2, 2)
    assert "receipts 2; 2 messages sent are under none" in text
    assert data["messages"]["out activation"] == 4
    assert "frames" not in text


def test_kept_frames_are_counted(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.begin()
    name = Blobs.open(pair.clinic.folder, create=True).keep(b"frame")
    pair.clinic.note("out", Kind.ACTIVATION, commit="a" * 64, blob=name)
    pair.clinic.end()
    text = "\n".join(report_lines(verify(pair.clinic.folder)))
    assert "frames   1 kept sealed, 0 of them destroyed" in text


def test_the_last_line_is_the_verdict() -> None:
    assert verdict_line(0, "CLEAN") == "verdict  clean"
    assert verdict_line(3, "INTEGRITY") == "verdict  integrity (exit 3)"
