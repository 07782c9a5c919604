"""A pre-trained discriminator fine-tuned on SIB-200 through `splitlearn trusted train`, in two languages.

Takes the folder that `tests.bench.pretraining --languages shared --export FOLDER` or a run of
`splitlearn pretrain` leaves, and beside it a model of the same sizes with weights drawn anew. Each is
fine-tuned split over two processes, as the commands do it. Writes out/bench/sib200.json: accuracy on
the test sentences by language, of both models and of always saying the largest class. Run as
`python -m tests.bench.sib200 FOLDER [--data ../shared/data] [--languages en de]`.
"""

import argparse
import csv
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import torch
from transformers import AutoConfig, AutoModel

from parties.run_metrics import METRICS, RunMetrics
from splitlearn.roles import Role
from tests.federation import make_identity

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "sib200.json"
SHARED = ROOT.parent / "shared" / "data" / "sib200"
POLICIES = ROOT / "parties" / "policies"

_JOB = """
[run]
name = "sib200"
folder = "run"
seed = 1
deadline_s = 120
[identity]
folder = "{folder}/clinic-trusted"
[peer]
party = "gpuhost"
dial = "127.0.0.1:{port}"
[model]
path = "{model}"
task = "sequence-classification"
[data]
train = "train.csv"
evaluate = "test.csv"
text = "text"
label = "topic"
max_length = 96
[cut]
bottom = 1
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
epochs = {epochs}
batch_size = 16
micro_batches = 2
warmup_steps = 10
[policy]
file = "policy.toml"
"""

_COMPUTE = """
[run]
folder = "runs"
deadline_s = 120
[identity]
folder = "{folder}/gpuhost-compute"
[peer]
party = "clinic"
listen = "127.0.0.1:{port}"
[policy]
file = "compute-policy.toml"
"""


def rows(data: Path, language: str, part: str) -> list[dict[str, str]]:
    with gzip.open(data / f"{language}.{part}.tsv.gz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def write(path: Path, found: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "topic"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(found)


def drawn(model: Path, to: Path) -> Path:
    """A model of the same sizes that has learnt nothing, with the same tokenizer."""
    torch.manual_seed(0)
    shutil.copytree(model, to)
    AutoModel.from_config(AutoConfig.from_pretrained(model)).save_pretrained(to)
    return to


def accuracy(model: Path, *, data: Path, language: str, epochs: int, rate: float) -> float:
    """Of a split run over two processes, on the test sentences."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for party, role in (("clinic", Role.TRUSTED), ("gpuhost", Role.COMPUTE)):
            make_identity(folder, party, role)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = {"folder": folder, "port": port, "model": model, "epochs": epochs, "rate": rate}
        (folder / "job.toml").write_text(_JOB.format(**told))
        (folder / "compute.toml").write_text(_COMPUTE.format(**told))
        shutil.copyfile(POLICIES / "research.toml", folder / "policy.toml")
        shutil.copyfile(POLICIES / "compute.toml", folder / "compute-policy.toml")
        write(folder / "train.csv", rows(data, language, "train"))
        write(folder / "test.csv", rows(data, language, "test"))
        command = [sys.executable, "-m", "parties.cli"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        compute = subprocess.Popen(
            [*command, "compute", "compute.toml", "--threads", "1"], cwd=folder, env=environment
        )
        try:
            subprocess.run(
                [*command, "trusted", "train", "job.toml", "--threads", "1"],
                cwd=folder,
                env=environment,
                check=True,
            )
        finally:
            compute.terminate()
            compute.wait()
        metrics = msgspec.json.decode((folder / "run" / METRICS).read_bytes(), type=RunMetrics)
    return metrics.scores["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--languages", nargs="+", default=["en", "de"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-4)
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        models = {
            "pretrained": arguments.model.resolve(),
            "scratch": drawn(arguments.model, Path(place) / "scratch"),
        }
        for language in arguments.languages:
            labels = Counter(row["topic"] for row in rows(arguments.data, language, "test"))
            found[language] = {"majority": max(labels.values()) / labels.total()}
            for name, model in models.items():
                found[language][name] = accuracy(
                    model,
                    data=arguments.data,
                    language=language,
                    epochs=arguments.epochs,
                    rate=arguments.rate,
                )
            print(json.dumps({language: found[language]}), flush=True)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"epochs": arguments.epochs, "accuracy": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
