import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parties import recording
from parties.pretrain_view import EVENTS
from parties.recording import METRICS, Recorder
from splitlearn.coordination.endings import FINISHED
from splitlearn.engine.streams.progress import Member, Progress
from splitlearn.engine.streams.rounds import Joined, Kept, Left, Scored, Trained
from splitlearn.errors import AuditError
from splitlearn.manifest import load_pretrain
from tests.tongues import tongues


def trained(step: int, language: str, loss: float) -> Trained:
    return Trained(step, language, loss, 0.9, 0.15, 100, 0.0, {"aa": 2, "bb": 1})


def scored(language: str, auc: float | None) -> Scored:
    return Scored(0, language, auc, 0.9, 0.5, 50)


def progress() -> Progress:
    score = {"auc": 0.75, "accuracy": 0.9, "loss": 0.5, "tokens": 50}
    other = {**score, "auc": 0.5}
    history = ({"round": 0, "loss": {"aa": 1.0}, "scores": {"aa": score, "bb": other}},)
    member = Member(language="aa", size=10, batches=2, tokens=200)
    return Progress(job="j", step=3, round=1, members={"ana": member}, history=history)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]


def test_steps_are_told_together_and_everything_else_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_EVERY_S", 1e9)
    job = load_pretrain(tongues(tmp_path / "job", {"ana": "aa"}).job)
    with Recorder(tmp_path / "run", moved=lambda: 700) as recorder:
        recorder.begin(job, Progress(job="j"))
        recorder(Joined("ana", "aa"))
        for step, (language, loss) in enumerate([("aa", 0.4), ("bb", 0.2), ("aa", 0.2)], 1):
            recorder(trained(step, language, loss))
        recorder(Left("bo", "nothing came for 20 s; it may come back"))
        recorder.refused("chi", "no such file")
        recorder(scored("aa", 0.75))
        recorder(scored("bb", 0.5))
        recorder(Kept(3))
        recorder.round(progress())
        recorder.finish(progress())
    found = lines(tmp_path / "run")
    assert [line["event"] for line in found] == [
        *("begin", "joined", "left", "refused", "scored", "scored", "kept"),
        *("steps", "round", "finished"),
    ]
    steps = found[7]
    assert (steps["step"], steps["link_bytes"]) == (3, 700)
    assert steps["languages"]["aa"]["loss"] == pytest.approx(0.3)
    assert steps["languages"]["aa"]["fill"] == 2
    metrics = json.loads((tmp_path / "run" / METRICS).read_text())
    assert metrics["auc"] == {"aa": 0.75, "bb": 0.5, "worst": 0.5}
    assert metrics["bytes_per_token"] == 700 / 400
    assert metrics["members"]["ana"]["tokens"] == 200
    assert json.loads((tmp_path / "run" / FINISHED).read_text()) == {"step": 3, "rounds": 1}


def test_a_language_without_a_score_spoils_no_other(tmp_path: Path) -> None:
    kept = progress()
    kept.history[0]["scores"]["bb"]["auc"] = None  # type: ignore[index]
    with Recorder(tmp_path, moved=lambda: 0) as recorder:
        recorder(scored("bb", None))
        recorder.round(kept)
    metrics = json.loads((tmp_path / METRICS).read_text())
    assert metrics["auc"] == {"aa": 0.75, "bb": None, "worst": 0.75}


def test_curves_are_written_for_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Recorder(tmp_path, moved=lambda: 700) as recorder:
        for step in range(1, 4):
            recorder(trained(step, "aa", 1 / step))
        recorder(scored("aa", 0.75))
    reader = EventAccumulator(str(tmp_path / "scalars"))
    reader.Reload()
    tags = set(reader.Tags()["scalars"])
    assert {"loss/aa", "accuracy/aa", "replaced/aa", "tokens_per_s", "link_bytes"} <= tags
    assert {"buffer/aa", "held_out/auc/aa"} <= tags
    assert [point.value for point in reader.Scalars("loss/aa")] == pytest.approx([1, 1 / 2, 1 / 3])


def test_a_disk_that_is_full_stops_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path, moved=lambda: 0) as recorder, Path("/dev/full").open("ab", 0) as full:
        usual, recorder._file = recorder._file, full
        with pytest.raises(AuditError, match="make room there"):
            recorder(Kept(3))
        recorder._file = usual


def test_lines_hold_no_more_than_they_say(tmp_path: Path) -> None:
    with Recorder(tmp_path, moved=lambda: 0) as recorder:
        recorder.refused("chi", "x" * 5_000)
    (line,) = (tmp_path / EVENTS).read_bytes().splitlines()
    assert len(line) < 600
    assert msgspec.json.decode(line)["event"] == "refused"
