"""`splitlearn audit reconcile`: two logs, one verdict, in words and as JSON."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties.auditor import app
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind
from tests.audit.pair import CLINIC_KEY, FARM_KEY, Pair, segment


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reconcile", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def folders(pair: Pair) -> list[str]:
    return [str(folder) for folder in pair.folders]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_logs_that_agree_are_clean(pair: Pair) -> None:
    words = [*folders(pair.run()), "--key-a", CLINIC_KEY, "--key-b", FARM_KEY]
    code, text = run(*words)
    assert (code, text.splitlines()[-1]) == (0, "verdict  clean")
    assert "matched  16 messages in 1 conversations" in text
    code, text = run(*words, "--json")
    found = json.loads(text)
    assert (code, found["ok"], found["exit"], found["version"]) == (0, True, 0, 1)
    assert found["counts"]["matched"] == 16
    assert found["differences"] == []
    assert found["here"]["findings"] == found["there"]["findings"] == []


def test_logs_that_do_not_agree_name_the_records(pair: Pair) -> None:
    pair.begin()
    pair.clinic.note("out", Kind.ACTIVATION, commit="a" * 64)
    pair.farm.note("in", Kind.ACTIVATION, commit="b" * 64)
    pair.clinic.end()
    pair.farm.end()
    code, text = run(*folders(pair))
    assert code == 4
    assert "FAULT digest_mismatch   record 1 here, record 1 there: run news, message 1" in text
    assert "verdict  mismatch (exit 4)" in text
    code, text = run(*folders(pair), "--json")
    (difference,) = json.loads(text)["differences"]
    assert code == 4
    assert (difference["class"], difference["exit"]) == ("digest_mismatch", 4)
    assert (difference["here"], difference["there"]) == (1, 1)


def test_a_loss_that_is_explained_is_a_note(pair: Pair) -> None:
    pair.begin()
    pair.step()
    pair.say(Kind.ACTIVATION, lost=True)
    pair.clinic.end("failed")
    pair.farm.end("failed")
    code, text = run(*folders(pair))
    assert code == 0
    assert "note  unreceipted_tail" in text


def test_a_log_that_was_changed_comes_first(pair: Pair) -> None:
    pair.run()
    path = segment(pair.farm.folder)
    path.write_bytes(path.read_bytes().replace(b'"step":null', b'"step":1234', 1))
    assert run(*folders(pair))[0] == 3


def test_what_is_no_log_is_the_callers_mistake(pair: Pair) -> None:
    clinic, farm = folders(pair.run())
    for words in ([clinic, farm + "x"], [clinic + "x", farm], [clinic, farm, "--key-a", "x"]):
        with pytest.raises(ManifestError):
            run(*words)
