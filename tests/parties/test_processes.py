"""Processes of a demo: their last words are told, and nothing of them stays behind."""

import sys
import time
from pathlib import Path

import pytest

from parties import processes
from parties.processes import at_work, checked, ended
from splitlearn.errors import ChannelError


def test_a_command_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match=r"splitlearn generator failed: .*gone\.toml"):
        checked("generator", "run", "gone.toml", cwd=tmp_path)


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    child = (
        "import pathlib, subprocess, time; nap = subprocess.Popen(['sleep', '600']); "
        "pathlib.Path('nap').write_text(str(nap.pid)); time.sleep(600)"
    )
    told = tmp_path / "nap"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_PARTING_S", 0.5)
        log = tmp_path / "log.txt"
        with at_work([sys.executable, "-c", child], log=log, cwd=tmp_path):
            while not told.exists() or not told.read_text():
                time.sleep(0.01)
            nap = Path("/proc") / told.read_text()
            assert nap.exists()
    # Killed, and gone or waiting for somebody to ask how it ended.
    while nap.exists() and ") Z " not in (nap / "stat").read_text():
        time.sleep(0.01)


def test_a_process_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    fail = "import sys; print('one'); sys.exit('no such thing')"
    with (
        at_work([sys.executable, "-c", fail], log=log) as process,
        pytest.raises(ChannelError, match="failed: no such thing"),
    ):
        ended(process, log=log, patience_s=60)


def test_a_process_ends_with_the_demo(tmp_path: Path) -> None:
    nap = "import time; time.sleep(600)"
    with at_work([sys.executable, "-c", nap], log=tmp_path / "log.txt") as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_one_that_does_not_end_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with (
        at_work([sys.executable, "-c", "import time; time.sleep(600)"], log=log) as process,
        pytest.raises(ChannelError, match="did not end; see"),
    ):
        ended(process, log=log, patience_s=0.05)
