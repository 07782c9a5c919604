"""The pieces of the demo that can go wrong before it has run for minutes."""

import sys
from pathlib import Path

import pytest

from parties.demo_translate import _process, _table, _wait
from splitlearn.errors import ChannelError


def test_a_process_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    fail = "import sys; print('one'); sys.exit('no such thing')"
    with (
        _process(sys.executable, "-c", fail, log=log) as process,
        pytest.raises(ChannelError, match="failed: no such thing"),
    ):
        _wait(process, log=log)


def test_a_process_ends_with_the_demo(tmp_path: Path) -> None:
    nap = "import time; time.sleep(600)"
    with _process(sys.executable, "-c", nap, log=tmp_path / "log.txt") as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_the_table_says_what_metrics_say() -> None:
    metrics = {
        "bleu": {"local": 10.0, "codec": 9.9, "uncompressed": 10.0, "scratch": 1.0},
        "bytes": {"codec": 20_000_000, "uncompressed": 100_000_000, "ratio": 0.2},
        "steps": {"local": 120, "scratch": 80},
        "exact": True,
        "audit": {"ok": True, "matched": 7},
    }
    cells = [str(cell) for cell in _table(metrics).columns[1].cells]
    assert cells == ["10.00", "10.00", "9.90", "1.00", "20.0%", "to the bit", *cells[6:]]
    assert "7 messages" in cells[6]
