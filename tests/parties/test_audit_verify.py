"""`splitlearn audit verify` as an auditor runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties.auditor import app
from splitlearn.errors import ManifestError
from tests.audit.pair import CLINIC_KEY, FARM_KEY, Pair, segment
from tests.door import Door, rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run of one message, written through the gate."""
    door = Door(tmp_path / "audit")
    door.send(rows())
    door.gate.close(outcome="done")
    door.log.close()
    return tmp_path / "audit"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_whole_log_gets_a_readable_verdict(log: Path) -> None:
    code, text = run(str(log))
    assert code == 0
    assert "verdict  clean" in text
    assert "out activation" in text
    assert "give the one that the party told you" in text


def test_the_report_as_json_has_what_the_text_has(log: Path) -> None:
    key = log / "verifier.key"
    code, text = run(str(log), "--json", "--key", str(key))
    report = json.loads(text)
    assert (code, report["ok"], report["exit"], report["version"]) == (0, True, 0, 2)
    assert report["key_pinned"] is True
    assert [finding["name"] for finding in report["findings"]] == ["unreceipted"]
    assert report["messages"]["out activation"] == 1
    assert report["bytes"]["out activation"] > 28 * 32 * 4
    assert report["records"] == report["covered"]
    assert run(str(log), "--key", key.read_text())[0] == 0


def test_keys_of_peers_are_pinned(tmp_path: Path) -> None:
    folder = str(Pair(tmp_path).run().clinic.folder)
    _, text = run(folder, "--key", CLINIC_KEY)
    assert "peer-unpinned" in text
    code, text = run(folder, "--key", CLINIC_KEY, "--peer-key", FARM_KEY)
    assert code == 0
    assert "peer-unpinned" not in text
    other = FARM_KEY.partition("+")[0] + "+" + CLINIC_KEY.partition("+")[2]
    with pytest.raises(ManifestError, match="--peer-key"):
        run(folder, "--peer-key", other)


def test_a_changed_log_ends_with_its_own_exit_code(log: Path) -> None:
    path = segment(log)
    path.write_bytes(path.read_bytes().replace(b'"phase":"train"', b'"phase":"other"'))
    code, text = run(str(log))
    assert code == 3
    assert "FAULT" in text
    assert "verdict  integrity (exit 3)" in text


def test_a_refusal_and_an_unfinished_log_have_theirs(tmp_path: Path) -> None:
    door = Door(tmp_path)
    assert run(str(tmp_path))[0] == 5
    batch = rows()
    batch.x_ND[0, 0] = float("nan")
    with pytest.raises(Exception, match="NaN"):
        door.send(batch)
    door.gate.close(outcome="refused")
    door.log.close()
    code, text = run(str(tmp_path))
    assert code == 1
    assert "stopped by rule content.finite" in text


def test_a_folder_that_is_none_and_a_key_that_is_none_are_mistakes_of_the_caller(log: Path) -> None:
    for words in (
        [str(log / "none")],
        [str(log), "--key", "a+b+c"],
        [str(log), "--key", "none.key"],
    ):
        with pytest.raises(ManifestError):
            run(*words)


def test_an_empty_folder_cannot_be_checked(tmp_path: Path) -> None:
    assert run(str(tmp_path))[0] == 5
