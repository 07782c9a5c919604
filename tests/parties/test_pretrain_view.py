import json
import time
from pathlib import Path
from typing import Any

import pytest

from parties.pretrain_view import EVENTS, View

STEPS = {
    "event": "steps",
    "step": 12,
    "languages": {
        "sw": {"steps": 5, "loss": 0.31, "accuracy": 0.9, "replaced": 0.1, "fill": 3},
        "[b]zh[/b]": {"steps": 7, "loss": 0.2, "accuracy": 0.9, "replaced": 0.1, "fill": 0},
    },
    "waited_s": 0.1,
    "tokens_per_s": 1234.0,
    "link_bytes": 5_000,
}
EVENTS_OF_A_RUN: list[dict[str, Any]] = [
    {"event": "begin", "run": "tongues", "step": 0, "steps": 40, "round": 0, "rounds": 2},
    {"event": "joined", "party": "ana", "language": "sw"},
    STEPS,
    {"event": "left", "party": "ana", "why": "nothing came for 20 s; it may come back"},
    {"event": "scored", "language": "sw", "auc": 0.7512},
    {"event": "scored", "language": "zh", "auc": None},
    {"event": "kept", "step": 20},
    {"event": "round", "round": 0},
    {"event": "refused", "party": "bo", "why": "no such file"},
    {"event": "finished", "step": 40},
]


def append(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / EVENTS).open("a") as file:
        file.write("".join(f"{json.dumps(event)}\n" for event in events))


def test_what_counts_is_told_in_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path, {"event": "joined", "party": "old", "language": "xx"})
    with View(tmp_path / EVENTS):
        append(tmp_path, *EVENTS_OF_A_RUN)
    told = capsys.readouterr().err
    assert "old" not in told  # what was written before is over
    for sentence in (
        "run tongues, round 1 of 2",
        "ana streams sw",
        "step 12: 1234 tokens/s, 5.0 kB came; loss [b]zh[/b] 0.200, sw 0.310",
        "ana left: nothing came for 20 s; it may come back",
        "round 1: AUC on held-out text: sw 0.751, zh -",
        "bo could not come: no such file",
        "all rounds are done, 40 steps",
    ):
        assert sentence in told


def test_a_file_that_comes_later_and_lines_that_are_half_written_are_no_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with View(tmp_path / EVENTS) as view:
        (tmp_path / EVENTS).write_text('not json\n{"event": "joined", "par')
        view._look()
        with (tmp_path / EVENTS).open("a") as file:
            file.write('ty": "ana", "language": "sw"}\n')
        view._look()
        time.sleep(0)
    assert capsys.readouterr().err.count("ana streams sw") == 1


def test_the_table_has_a_row_for_each_language(tmp_path: Path) -> None:
    view = View(tmp_path / EVENTS)
    for event in EVENTS_OF_A_RUN:
        view.take(event)
    assert view._table().row_count == 2
