"""`splitlearn audit verify` as an auditor runs it: in a process of its own, with nothing but a log."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from parties.auditor import app, judge_of
from splitlearn.audit import Payload
from splitlearn.audit.records import RunOpen
from splitlearn.errors import ManifestError
from splitlearn.policy import load
from splitlearn.roles import Kind
from tests.audit.test_log import segment
from tests.door import POLICIES, Door, records, rows

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run of one message."""
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
    assert (code, report["ok"], report["exit"], report["version"]) == (0, True, 0, 1)
    assert (report["key_pinned"], report["findings"]) == (True, [])
    assert report["messages"]["out activation"] == 1
    assert report["bytes"]["out activation"] > 28 * 32 * 4
    assert report["records"] == report["covered"]
    assert run(str(log), "--key", key.read_text())[0] == 0


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


def payload_of(log: Path) -> tuple[RunOpen, Payload]:
    found = records(log)
    (opened,) = (r for r in found if isinstance(r, RunOpen))
    (sent,) = (r for r in found if isinstance(r, Payload) and r.kind is Kind.ACTIVATION)
    return opened, sent


def test_a_verdict_is_derived_again_from_the_policy_in_the_log(log: Path) -> None:
    opened, sent = payload_of(log)
    assert judge_of(opened.policy_text)(sent) is None
    features = load(POLICIES / "features.toml").canonical.decode()
    assert judge_of(features)(sent) is None
    gradient = msgspec.structs.replace(sent, kind=Kind.GRADIENT, rules=("gradient",))
    assert judge_of(opened.policy_text)(gradient) is None
    assert "no rule" in str(judge_of(features)(gradient))
    assert "max_columns" in str(judge_of(features)(msgspec.structs.replace(sent, columns=5_000)))
    assert "not ('run',)" in str(judge_of(features)(msgspec.structs.replace(sent, rules=("run",))))


def test_budgets_are_added_up_again(log: Path) -> None:
    opened, sent = payload_of(log)
    tight = opened.policy_text.replace("68719476736", str(sent.wire_bytes + 1))
    judge = judge_of(tight)
    assert judge(sent) is None
    assert "max_run_bytes" in str(judge(sent))


def test_an_auditor_needs_no_torch() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from parties.auditor import app; "
        "CliRunner().invoke(app, ['verify', '.']); "
        "import splitlearn.policy; "
        "sys.exit(' '.join(n for n in sys.modules if n in {'torch', 'transformers', 'grpc'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
