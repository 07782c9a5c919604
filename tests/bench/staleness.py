"""What a staleness does to the model: loss and accuracy of the same job with staleness 0, 1 and 2.

MiniLM on the demo's news articles, five topics, everything training, identity codec; both parties in
one process over the memory channel, with gates, sessions and logs, for no number depends on the link.
Three seeds; the training loss of the last ten steps and the accuracy on held-out articles, beside the
step time that the planner's simulation gives on a link of long delay. Writes out/bench/staleness.json
after every run and goes on from there. Run as `python -m tests.bench.staleness`; needs the `demo` extra.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from parties import demo_data
from splitlearn.channel import pair
from splitlearn.engine.job.prepare import prepare
from splitlearn.manifest import load_job
from splitlearn.pipeline.chain import Chain, Pipe, StageCosts
from splitlearn.pipeline.simulate import simulate
from splitlearn.tasks import Scorer
from tests.rig import ComputeThread, compute_party, trusted_engine, trusted_party
from tests.tiny import real_model_folder

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "staleness.json"
STALENESS, SEEDS = (0, 1, 2), (1, 2, 3)
ARTICLES, LAST = 960, 10

JOB = """
[run]
name = "staleness"
folder = "run"
seed = {seed}
deadline_s = 600
[identity]
folder = "clinic"
[peer]
party = "gpuhost"
dial = "127.0.0.1:1"
[model]
path = "{model}"
task = "sequence-classification"
labels = ["business", "entertainment", "politics", "sports", "tech"]
[data]
train = "clinic/train.jsonl"
evaluate = "clinic/evaluate.jsonl"
text = "text"
label = "label"
max_length = 32
[cut]
bottom = 2
top = -1
mode = "full"
train_bottom = true
[codec]
activation = "identity"
output = "identity"
gradient = "identity"
input_gradient = "identity"
[optimiser]
learning_rate = {rate}
[schedule]
steps = {steps}
batch_size = 16
micro_batches = 2
warmup_steps = 4
staleness = {staleness}
[checkpoint]
every_steps = 1000
[policy]
file = "clinic/policy.toml"
"""


def trained(room: Path, *, staleness: int, seed: int, steps: int, rate: float) -> dict[str, float]:
    """One run: its training loss at the beginning and the end, and what it gets right held-out."""
    demo_data.prepare(room, articles=ARTICLES)
    job = room / "job.toml"
    settings = {"seed": seed, "steps": steps, "rate": rate, "staleness": staleness}
    job.write_text(JOB.format(model=real_model_folder(), **settings))
    prepared = prepare(load_job(job))
    ours, theirs = pair()
    thread = ComputeThread(
        compute_party(room), theirs, models=(real_model_folder(),), deadline_s=600
    )
    engine = trusted_engine(prepared.run, trusted_party(room), ours)
    engine.train(prepared.data.steps)
    assert prepared.data.held_out is not None
    scorer = Scorer(prepared.data.held_out)
    for outputs in engine.evaluate(prepared.data.evaluation):
        scorer.add(outputs)
    engine.finish()
    thread.join(60)
    assert thread.error is None
    losses = engine.losses
    return {
        "first_loss": statistics.mean(losses[:LAST]),
        "last_loss": statistics.mean(losses[-LAST:]),
        "worst_loss": max(losses),
        "accuracy": scorer.result()["accuracy"],
    }


def step_s(staleness: int, *, rtt_s: float) -> float:
    """Seconds of a step of two micro-batches by simulation: half a second of work, and a long way."""
    far = Pipe(100e6, rtt_s / 2)
    chain = Chain(
        micro_batches=2,
        in_flight=8,
        order="1f1b",
        bottom_s=0.04,
        top_s=0.06,
        bottom_backward_s=0.05,
        stages=(StageCosts(0.03, 0.06),),
        activation=400_000,
        output=400_000,
        gradient=400_000,
        input_gradient=400_000,
        up=far,
        down=far,
        settle_messages=256,
    )
    return simulate(replace(chain, staleness=staleness), steps=64).step_s


def main() -> None:
    """Run what the result file has not yet; print means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=2e-4, help="learning rate")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    settings = {"steps": given.steps, "rate": given.rate, "articles": ARTICLES}
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if found.get("settings") != settings:
        found = {"settings": settings, "runs": {}}
    for seed in SEEDS:
        for staleness in STALENESS:
            name = f"{staleness}/{seed}"
            if name not in found["runs"]:
                with tempfile.TemporaryDirectory() as room:
                    found["runs"][name] = trained(
                        Path(room),
                        staleness=staleness,
                        seed=seed,
                        steps=given.steps,
                        rate=given.rate,
                    )
            print(name, found["runs"][name], flush=True)
            RESULT.write_text(json.dumps(found, indent=2) + "\n")
    found["mean"] = {
        str(staleness): {
            key: statistics.mean(found["runs"][f"{staleness}/{seed}"][key] for seed in SEEDS)
            for key in ("first_loss", "last_loss", "worst_loss", "accuracy")
        }
        for staleness in STALENESS
    }
    found["simulated_step_s"] = {
        f"{rtt_s:g} s round trip": {str(s): step_s(s, rtt_s=rtt_s) for s in STALENESS}
        for rtt_s in (0.02, 0.2, 1.0)
    }
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({key: found[key] for key in ("mean", "simulated_step_s")}, indent=2))


if __name__ == "__main__":
    main()
