"""The pieces of the demo that can go wrong before it has run for minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parties.demo_tongues import _checked, _process, _table, _wait_for
from parties.demo_tongues_data import Ports
from splitlearn.errors import ChannelError


def test_a_command_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match=r"splitlearn generator failed: .*gone\.toml"):
        _checked("generator", "run", "gone.toml", out=tmp_path)


def test_a_coordinator_that_ends_at_once_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with (
        _process("coordinator", "up", "--folder", "gone", out=tmp_path, log=log) as process,
        pytest.raises(ChannelError, match=r"did not come up: .*gone"),
    ):
        _wait_for(Ports().serve, process, log=log)


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    child = f"import subprocess, time; subprocess.Popen(['sleep', '{_NAP}']); time.sleep(600)"
    before = _sleeping()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parties.demo_tongues._COMMAND", (sys.executable, "-c", child))
        patch.setattr("parties.demo_tongues._PARTING_S", 0.5)
        with _process(out=tmp_path, log=tmp_path / "log.txt"):
            while _sleeping() == before:
                pass
    while _sleeping() != before:  # pytest's own limit ends it
        pass


# Nobody else on this machine sleeps so long.
_NAP = f"{600 + os.getpid() / 1e7:.7f}"


def _sleeping() -> int:
    found = subprocess.run(
        ["pgrep", "-c", "-r", "R,S", "-x", "-f", f"sleep {_NAP}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(found.stdout)


def test_the_table_says_what_metrics_say() -> None:
    score = {"auc": 0.8}
    metrics = {
        "members": {
            "a": {"language": "sw", "batches": 3, "tokens": 1_000},
            "b": {"language": "zh", "batches": 3, "tokens": 1_000},
        },
        "rounds": [{"scores": {"sw": score, "zh": {"auc": None}}}, {"scores": {"sw": score}}],
        "bytes_per_token": 2.1,
        "tokens_per_s": 900.0,
        "audit": {"ok": True, "matched": 7, "records": 20},
    }
    table = _table(metrics)
    assert table.row_count == 5
    assert [str(cell) for cell in table.columns[-1].cells][:2] == ["0.800", "-"]
