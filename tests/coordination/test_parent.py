import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from splitlearn.coordination.parent import ends_with_its_parent

ROOT = Path(__file__).parents[2]

_CHILD = """
import sys, time
from splitlearn.coordination.parent import ends_with_its_parent
with open(sys.argv[1], "w") as told:
    print("works", file=told, flush=True)
    try:
        with ends_with_its_parent(look_s=0.05):
            time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", file=told, flush=True)
"""
_PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
time.sleep(600)
"""


def test_a_child_is_interrupted_when_its_parent_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(told), _CHILD], cwd=ROOT)
    while not told.exists() or "works" not in told.read_text():
        time.sleep(0.01)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    while "interrupted" not in told.read_text():
        time.sleep(0.01)


def test_work_under_a_living_parent_is_left_alone() -> None:
    with ends_with_its_parent(look_s=0.01):
        time.sleep(0.1)
