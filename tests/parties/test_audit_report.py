"""`splitlearn audit report` and `export` as an auditor runs them."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties.auditor import app
from splitlearn.errors import ManifestError
from splitlearn.identity.party import Keys
from splitlearn.report import load
from splitlearn.report.statement import verify
from splitlearn.roles import Kind
from tests.report.logs import KEY, PEER_KEY, ROOT, Talk, eventful, opened


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with opened(tmp_path / "audit") as written:
        talk = Talk(written)
        talk.steps(range(3))
        talk.swap(size=20)
        talk.close()
    return tmp_path / "audit"


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_report_is_written_with_its_json_and_says_where(log: Path, tmp_path: Path) -> None:
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    code, text = run("report", log, "-o", page, "--json", data, "--key", KEY)
    assert code == 0
    assert text.splitlines() == [f"wrote    {page}", f"wrote    {data}", "verdict  clean"]
    document = load(data.read_bytes())
    assert document.log.pinned
    assert document.verdict.name == "clean"
    assert document.made in page.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"audit", "r.html", "r.json"}


def test_the_exit_code_is_that_of_verify_and_the_page_is_written_all_the_same(
    tmp_path: Path,
) -> None:
    log = eventful(tmp_path / "audit", steps=4)
    code, text = run("report", log, "-o", tmp_path / "r.html")
    assert (code, run("verify", log)[0]) == (1, 1)
    assert "verdict  policy (exit 1)" in text
    segment = log / "log" / "000000.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"step":1', b'"step":2'))
    code, _ = run("report", log, "-o", tmp_path / "r.html")
    assert code == 3
    assert "Does not add up" in (tmp_path / "r.html").read_text()


def test_verdicts_are_derived_again(log: Path, tmp_path: Path) -> None:
    """The policy in the log is read by the same judge as verify's."""
    with opened(tmp_path / "b") as written:
        talk = Talk(written)
        talk.steps(range(1))
        talk.send(Kind.ACTIVATION, step=1, columns=10**6)
        talk.close()
    assert run("report", tmp_path / "b", "-o", tmp_path / "r.html")[0] == 1
    assert "max_columns" in (tmp_path / "r.html").read_text()


def test_a_statement_is_signed_by_the_identity(log: Path, tmp_path: Path) -> None:
    keys = Keys.obtain(tmp_path / "me")
    page, signed = tmp_path / "r.html", tmp_path / "r.dsse.json"
    words = ["report", log, "-o", page, "--statement", signed]
    assert run(*words, "--identity", tmp_path / "me", "--peer-key", PEER_KEY)[0] == 0
    public = keys.log.public_key().public_bytes_raw()
    statement = verify(signed.read_bytes(), public_key=public, report=page.read_bytes())
    assert statement.subject[1].name == "r.html"
    with pytest.raises(ManifestError, match="go together"):
        run(*words)
    with pytest.raises(ManifestError, match="same name"):
        run("report", log, "-o", page, "--json", page)
    with pytest.raises(ManifestError, match="cannot be read"):
        run(*words, "--identity", tmp_path / "nobody")


def test_what_is_no_log_or_no_key_is_a_mistake_of_the_caller(log: Path, tmp_path: Path) -> None:
    for words in (
        ["report", tmp_path / "none"],
        ["report", log, "--key", "a+b+c"],
        ["report", log, "-o", tmp_path / "none" / "r.html"],
        ["export", tmp_path / "none", "--to", tmp_path / "x.tar"],
        ["export", log, "--to", tmp_path / "x.tar", "--with-run-key"],
    ):
        with pytest.raises(ManifestError):
            run(*words)
    assert {path.name for path in tmp_path.iterdir()} == {"audit"}


def test_a_copy_is_written_and_verifies(log: Path, tmp_path: Path) -> None:
    code, text = run("export", log, "--to", tmp_path / "copy.tar", "--table", "csv")
    assert code == 0
    assert f"wrote    {tmp_path / 'copy.tar'}: " in text
    with tarfile.open(tmp_path / "copy.tar") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    assert run("verify", tmp_path / "out", "--key", KEY)[0] == 0
    assert (tmp_path / "out" / "records.csv").read_text().startswith("seq,")


def test_a_copy_with_the_run_key_says_so(log: Path, tmp_path: Path) -> None:
    words = ["export", log, "--to", tmp_path / "copy", "--with-blobs"]
    assert "run key" not in run(*words)[1]
    words[3] = tmp_path / "another"
    assert "reads every sealed frame" in run(*words, "--with-run-key")[1]


def test_reporting_needs_no_torch(log: Path, tmp_path: Path) -> None:
    script = (
        "import json, sys; from parties.cli import app; "
        "app(sys.argv[1:], standalone_mode=False); "
        "print(json.dumps(sorted(sys.modules.keys() & {'torch', 'transformers', 'grpc'})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "audit", "report", log, "-o", tmp_path / "r.html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []
