"""The demo, small but whole: a federation, two processes, a real model and real articles."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import splitlearn
from parties import cli
from parties.auditor import judge_of
from parties.demo_data import TOPICS
from splitlearn import audit
from splitlearn.engine.job.examples import data_of
from splitlearn.manifest import load_job
from splitlearn.tasks import Scorer

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    out: Path
    said: str
    metrics: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """`splitlearn demo --articles 50`, in a process of its own, as a user runs it."""
    out = tmp_path_factory.mktemp("demo") / "out"
    run = subprocess.run(
        [sys.executable, "-m", "parties.cli", "demo", "--out", str(out), "--articles", "50"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return Done(out, run.stderr, json.loads((out / "metrics.json").read_text()))


def test_it_measures_what_it_promises(done: Done) -> None:
    accuracy, moved = done.metrics["accuracy"], done.metrics["bytes"]
    assert accuracy.keys() == {"split", "unsplit", "majority"}
    assert all(0 < value <= 1 for value in accuracy.values())
    assert moved["total"] > moved["steps"] > 0
    assert moved["steps"] == sum(
        moved[kind] for kind in ("activation", "output", "gradient", "input_gradient")
    )
    assert moved["input_gradient"] == 0  # the bottom is frozen
    assert moved["float32_uncut"] > 8 * moved["steps"]
    assert all(value > 0 for value in done.metrics["step_s"].values())
    assert done.metrics["audit"]["ok"] is True


def test_the_merged_model_alone_scores_what_the_split_one_did(done: Done) -> None:
    data, _ = data_of(load_job(done.out / "job.toml"))
    assert data.held_out is not None
    model, scorer = splitlearn.load_merged(done.out / "model"), Scorer(data.held_out)
    with torch.no_grad():
        for batch in data.evaluation:
            scorer.add({"logits": model(**batch.inputs).logits})
    # What crossed the cuts was rounded to int8 and fp16, so an article in a hundred may tip over.
    assert abs(scorer.result()["accuracy"] - done.metrics["accuracy"]["split"]) <= 0.02


def test_the_merged_model_classifies_in_the_example(done: Done) -> None:
    example = ROOT / "examples" / "03_load_a_merged_model.py"
    run = subprocess.run(
        [sys.executable, str(example), str(done.out / "model")],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert all(topic in run.stdout for topic in TOPICS)


def test_both_logs_verify_and_hold_no_word_of_an_article(done: Done) -> None:
    rows = [
        json.loads(line)
        for line in (done.out / "clinic" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(rows) == 50
    for log in (done.out / "clinic/run/audit", done.out / "gpuhost/runs/clinic-bbc-news/audit"):
        assert audit.verify(log, judge_of=judge_of).ok
        raw = b"".join(path.read_bytes() for path in (log / "log").iterdir())
        assert not [row for row in rows if row["text"][:20].encode() in raw]


def test_it_tells_what_happens_and_where_it_lies(done: Done) -> None:
    for sentence in ("clinic has joined demo.example", "verified", str(done.out)):
        assert sentence in done.said
    assert (done.out / "gpuhost" / "output.txt").read_text()


def test_too_few_articles_are_a_mistake_of_the_caller() -> None:
    assert CliRunner().invoke(cli.app, ["demo", "--articles", "3"]).exit_code == 2
