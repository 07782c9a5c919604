"""Recipes of split runs, for benchmarks of accuracy and bytes: how a run is cut and what travels.

Two real processes through `splitlearn trusted` and `splitlearn compute`, with a proxy between them that
counts every byte of TCP payload, TLS and handshakes included.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from splitlearn.engine.job.prepare import specs, unsplit
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.manifest import load_job
from splitlearn.roles import Role
from splitlearn.tasks import Scorer
from tests.federation import make_identity
from tests.link import LinkProxy
from tests.rig import POLICIES
from tests.tiny import real_model_folder

ROOT = Path(__file__).parent.parent
# Of the same rows in float32: width, times bytes, times both cuts in both directions.
UNCUT_BYTES_A_ROW = 384 * 4 * 4
# The upper cut alone: both directions.
UNCUT_BYTES_A_ROW_UP = 384 * 4 * 2

JOB = """
[run]
name = "recipe"
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
labels = {labels}
[data]
train = "train.jsonl"
text = "text"
label = "label"
max_length = {max_length}
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
    epochs: int = 1
    rate: str = "2e-4"
    points: float | None = None
    ratio: float | None = None
    upper_ratio: float | None = None


@dataclass(frozen=True)
class Task:
    """Sentences with a label each. max_length: in tokens."""

    labels: tuple[str, ...]
    max_length: int


@dataclass(frozen=True)
class Trial:
    """One run: what of, how, from which seed, in which folder. Its files are there already."""

    place: Path
    task: Task
    recipe: Recipe
    seed: int
    train_bottom: bool = False

    def identities(self) -> None:
        """Of both parties."""
        for party, role in (("clinic", Role.TRUSTED), ("gpuhost", Role.COMPUTE)):
            make_identity(self.place, party, role)

    def job(self, *, address: str, evaluate: bool) -> Path:
        recipe = self.recipe
        path = self.place / "job.toml"
        path.write_text(
            JOB.format(
                seed=self.seed,
                address=address,
                model=real_model_folder(),
                labels=json.dumps(self.task.labels),
                max_length=self.task.max_length,
                evaluate='evaluate = "evaluate.jsonl"' if evaluate else "",
                train_bottom=str(self.train_bottom).lower(),
                upper=recipe.upper,
                codecs=recipe.codecs,
                micro_batches=recipe.micro_batches,
                rate=recipe.rate,
                epochs=recipe.epochs,
                mode=recipe.mode,
                cache="cache = true" if recipe.mode == "features" else "",
            )
        )
        return path


def write_files(
    place: Path,
    *,
    train: Sequence[tuple[str, str]],
    evaluate: Sequence[tuple[str, str]],
    public: Sequence[str],
    policy: str = "demo",
) -> None:
    """What the jobs of a folder read: sentences with their labels, public lines, both policies.

    policy: the trusted party's, of those that are shipped.
    """
    for name, some in (("train", train), ("evaluate", evaluate)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in some]
        (place / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (place / "public.txt").write_text("\n".join(public) + "\n")
    (place / "policy.toml").write_text((POLICIES / f"{policy}.toml").read_text())
    (place / "compute-policy.toml").write_text((POLICIES / "compute.toml").read_text())


def plain(trial: Trial) -> dict[str, float]:
    """The unsplit run on all cores."""
    manifest = load_job(trial.job(address="127.0.0.1:1", evaluate=True))
    torch.set_num_threads(os.cpu_count() or 1)
    data, model = unsplit(manifest)
    optimiser, schedule = specs(manifest, steps=data.steps.total)
    train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=trial.seed,
        observe=lambda _: None,
    )
    assert data.held_out is not None
    scorer = Scorer(data.held_out)
    for outputs in evaluate_plain(model, batches=data.evaluation, observe=lambda _: None):
        scorer.add(outputs)
    return {"accuracy": scorer.result()["accuracy"]}


def split(trial: Trial) -> dict[str, float]:
    """Training with the tap's count of its bytes; then evaluation and export, counted apart."""
    place = trial.place
    trial.identities()
    with LinkProxy(("127.0.0.1", 1)) as proxy:
        port = free_port()
        proxy.retarget(("127.0.0.1", port))
        (place / "compute.toml").write_text(COMPUTE.format(port=port, model=real_model_folder()))
        trial.job(address=proxy.address, evaluate=False)
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
                trial.job(address=proxy.address, evaluate=True)
                scores = json.loads(trusted(place, "evaluate"))
                before = proxy.up.carried + proxy.down.carried
                trusted(place, "export")
                exported = proxy.up.carried + proxy.down.carried - before
            finally:
                compute.kill()
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


def trusted(place: Path, command: str, *options: str) -> str:
    """One command of the trusted party; its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "parties.cli", "trusted", command, "job.toml", *options],
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
    """One that nobody listens at just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
