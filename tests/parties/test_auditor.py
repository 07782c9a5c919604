"""The auditor's commands together: what there are, and that they need nothing but a log."""

import subprocess
import sys
from pathlib import Path

import typer

from parties import audit_judge, auditor
from tests.audit.pair import Pair

ROOT = Path(__file__).parents[2]


def test_an_auditor_finds_every_command() -> None:
    group = typer.main.get_command(auditor.app)
    assert {"verify", "reconcile", "show", "redact", "report", "export"} <= set(
        getattr(group, "commands", {})
    )
    assert auditor.judge_of is audit_judge.judge_of


def test_an_auditor_needs_no_torch(tmp_path: Path) -> None:
    """Every command that reads a log, in a process that says what it imported."""
    here, there = (str(folder) for folder in Pair(tmp_path).run().folders)
    script = (
        "import sys; from typer.testing import CliRunner; from parties.auditor import app\n"
        f"for words in (['verify', {here!r}], ['reconcile', {here!r}, {there!r}], ['show', {here!r}]):\n"
        "    assert CliRunner().invoke(app, words).output\n"
        "import splitlearn.audit.dissect, splitlearn.policy\n"
        "sys.exit(' '.join(n for n in sys.modules if n in {'torch', 'transformers', 'grpc'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
