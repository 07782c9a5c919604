"""What a rank-8 cut costs on SST-2, and what coding its rows costs beside that: many seeds, no link.

Both parties in one process over the memory channel, with gates, sessions and logs, for no number depends
on the link. Three runs a seed: unsplit; behind a rank-8 PCA bottleneck, all as float32; behind it with
the codecs of the recipe narrow-transform of `sst2`. Loss on the dev set beside the accuracy: of 872
sentences 1 point is 9, and two runs that differ in the seed differ by more. So what is told is the mean
of the differences within a seed, with its standard error. Bytes are whole frames as logged, the first
sending of bases and weights included, against the same rows in float32.

Data as for `sst2`. Writes out/bench/cuts.json after every run, and goes on from there when started again.
Run as `python -m tests.bench.cuts`; needs the `demo` extra. Two to four minutes a run on one core.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers.utils import logging as transformers_logging

from splitlearn.channel import pair
from splitlearn.engine.job.examples import Data
from splitlearn.engine.job.prepare import prepare, specs, unsplit
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.manifest import Job, load_job
from splitlearn.tasks import Scorer
from tests.bench import sst2
from tests.recipes import UNCUT_BYTES_A_ROW, Trial
from tests.rig import ComputeThread, compute_party, trusted_engine, trusted_party
from tests.tiny import real_model_folder

RESULT = sst2.ROOT / "out" / "bench" / "cuts.json"
SEEDS = (1, 2, 3)
UNSPLIT, CUT, CODED = "unsplit", "rank 8", "rank 8, coded"
FLOATS = '\nactivation = "identity"\noutput = "identity"\ngradient = "identity"\n'


def main() -> None:
    """Run what the result file has not yet; print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=sst2.SHARED / "sst2")
    parser.add_argument("--public", type=Path, default=sst2.SHARED / "ntrex128" / "en.txt.gz")
    parser.add_argument("--sentences", type=int, default=sst2.SENTENCES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--rates", nargs="+", default=["2e-4"], help="learning rates")
    parser.add_argument("--runs", nargs="+", default=[UNSPLIT, CUT, CODED])
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    runs: dict[str, dict[str, float]] = {}
    if RESULT.exists():
        runs = json.loads(RESULT.read_text())["runs"]
    for seed in given.seeds:
        for rate in given.rates:
            for kind in given.runs:
                name = f"{kind}, {given.sentences} sentences at {rate}, {seed}"
                if name not in runs:
                    with tempfile.TemporaryDirectory() as room:
                        runs[name] = run(Path(room), kind=kind, rate=rate, seed=seed, given=given)
                print(name, json.dumps(runs[name]), flush=True)
                report(runs)
    print(json.dumps(report(runs), indent=2))


def run(
    room: Path, *, kind: str, rate: str, seed: int, given: argparse.Namespace
) -> dict[str, float]:
    """One training run and its dev set."""
    sst2.write_data(
        room,
        seed=seed,
        arguments=SimpleNamespace(  # type: ignore[arg-type]
            data=given.data, public=given.public, sentences=given.sentences
        ),
    )
    recipe = sst2.RECIPES["narrow-transform"]
    path = Trial(room, sst2.TASK, recipe, seed).job(address="127.0.0.1:1", evaluate=True)
    text = path.read_text().replace(f"learning_rate = {recipe.rate}", f"learning_rate = {rate}")
    if kind != CODED:
        text = text.replace(recipe.codecs, FLOATS)
    path.write_text(text)
    job = load_job(path)
    return whole(job, seed=seed) if kind == UNSPLIT else split(room, job)


def whole(job: Job, *, seed: int) -> dict[str, float]:
    data, model = unsplit(job)
    optimiser, schedule = specs(job, steps=data.steps.total)
    train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=seed,
        observe=lambda _: None,
    )
    return scored(data, evaluate_plain(model, batches=data.evaluation, observe=lambda _: None))


def split(room: Path, job: Job) -> dict[str, float]:
    prepared = prepare(job)
    ours, theirs = pair()
    thread = ComputeThread(
        compute_party(room), theirs, models=(real_model_folder(),), deadline_s=600
    )
    engine = trusted_engine(prepared.run, trusted_party(room), ours)
    engine.train(prepared.data.steps)
    moved = engine.sent.total() + engine.received.total()
    rows = engine.rows["train"]
    found = scored(prepared.data, engine.evaluate(prepared.data.evaluation))
    engine.finish()
    thread.join(60)
    assert thread.error is None
    return found | {"rows": rows, "ratio": UNCUT_BYTES_A_ROW * rows / moved}


def scored(data: Data, outputs: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Accuracy, and the mean cross-entropy of the true label."""
    assert data.held_out is not None
    scorer, losses = Scorer(data.held_out), list[torch.Tensor]()
    for made, given in zip(data.evaluation, outputs, strict=True):
        scorer.add(given)
        losses.append(
            torch.nn.functional.cross_entropy(
                given["logits"], made.labels["labels"], reduction="none"
            )
        )
    return {
        "accuracy": scorer.result()["accuracy"],
        "loss": float(torch.cat(losses).mean()),
    }


def report(runs: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Write all runs, and of each setting what it is behind the unsplit run of the same seed."""
    behind = dict(differences(runs))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"behind_unsplit": behind, "runs": runs}, indent=2) + "\n")
    return behind


def differences(runs: dict[str, dict[str, float]]) -> Iterator[tuple[str, dict[str, float]]]:
    """By setting: points of accuracy and loss behind, mean and standard error over seeds."""
    settings = dict.fromkeys(name.rpartition(", ")[0] for name in runs)
    for setting in settings:
        of_whole = f"{UNSPLIT}, {setting.rpartition(', ')[2]}"
        if setting == of_whole:
            continue
        pairs = [
            (run, runs[f"{of_whole}, {seed}"])
            for name, run in runs.items()
            for at, _, seed in [name.rpartition(", ")]
            if at == setting and f"{of_whole}, {seed}" in runs
        ]
        if not pairs:
            continue
        found = {"seeds": float(len(pairs))}
        for key, unit in (("accuracy", -100), ("loss", 1)):
            apart = [unit * (run[key] - other[key]) for run, other in pairs]
            found[key] = statistics.mean(apart)
            if len(apart) > 1:
                found[f"{key}_error"] = statistics.stdev(apart) / math.sqrt(len(apart))
        if "ratio" in pairs[0][0]:
            found["ratio"] = statistics.mean(run["ratio"] for run, _ in pairs)
        yield setting, found


if __name__ == "__main__":
    main()
