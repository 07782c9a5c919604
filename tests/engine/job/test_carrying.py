"""What a frame costs a channel here: real probes through a real channel, and nothing left behind.

How right the figures are is judged by tests/bench/links.py.
"""

import tempfile
import threading
from pathlib import Path

import pytest

from splitlearn.engine.job.carrying import carrying


def test_a_frame_and_its_bytes_cost_time_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = threading.active_count()
    fixed_s, each_s = carrying()
    assert 0 < fixed_s < 1
    assert 0 <= each_s < 1e-3
    assert not list(tmp_path.iterdir())
    assert threading.active_count() <= before + 1  # gRPC keeps one of its own
