"""The pieces of the demo that can go wrong before it has run for minutes."""

import sys
import time
from pathlib import Path

import pytest

from parties.demo_pretrain import _checked, _process, _table, _wait_for
from parties.demo_pretrain_data import Ports
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
    child = (
        "import pathlib, subprocess, time; nap = subprocess.Popen(['sleep', '600']); "
        "pathlib.Path('nap').write_text(str(nap.pid)); time.sleep(600)"
    )
    told = tmp_path / "nap"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parties.demo_pretrain._COMMAND", (sys.executable, "-c", child))
        patch.setattr("parties.demo_pretrain._PARTING_S", 0.5)
        with _process(out=tmp_path, log=tmp_path / "log.txt"):
            while not told.exists() or not told.read_text():
                time.sleep(0.01)
            nap = Path("/proc") / told.read_text()
            assert nap.exists()
    # Killed, and gone or waiting for somebody to ask how it ended.
    while nap.exists() and ") Z " not in (nap / "stat").read_text():
        time.sleep(0.01)


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
