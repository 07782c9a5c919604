"""The pieces of the demo that can go wrong before it has run for minutes."""

from pathlib import Path

import pytest

from parties.demo_pretrain import _table, _wait_for
from parties.demo_pretrain_data import Ports
from parties.processes import COMMAND, at_work
from splitlearn.errors import ChannelError


def test_a_coordinator_that_ends_at_once_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with (
        at_work([*COMMAND, "coordinator", "up", "--folder", "gone"], log=log) as process,
        pytest.raises(ChannelError, match=r"did not come up: .*gone"),
    ):
        _wait_for(Ports().serve, process, log=log)


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
