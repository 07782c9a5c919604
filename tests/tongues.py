"""A hub and its generators as their people would set them up: identities, settings, text, policies."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from splitlearn.roles import Role
from tests.babble import WIDTH, text_file, vocabulary
from tests.federation import make_identity

POLICIES = Path(__file__).parent.parent / "parties" / "policies"

_JOB = """
[run]
name = "tongues"
folder = "hub/run"
seed = 1
threads = 1

[identity]
folder = "{identity}"

[coordinator]
address = "127.0.0.1:{control}"

[listen]
address = "127.0.0.1:{listen}"

[vocabulary]
file = "tokenizer.json"

[model]
layers = 1
width = 32
heads = 2
inner = 64
embedding = 16
positions = {width}

[batch]
examples = 4
width = {width}

[optimiser]
learning_rate = 3e-3
warmup_steps = 4

[rounds]
count = {rounds}
steps = {steps}
held_out = 2
deadline_s = 120
silence_s = 20
gather_s = 0
least = {least}
buffer = 4
save_every = {save_every}

[policy]
file = "hub/policy.toml"
"""

_GENERATOR = """
[run]
folder = "{party}/run"
threads = 1
save_every = 5

[identity]
folder = "{identity}"

[coordinator]
address = "127.0.0.1:{port}"
party = "hub"

[data]
language = "{language}"
text = "{text}"
held_out = 0.1

[vocabulary]
file = "tokenizer.json"
{more}

[model]
layers = 1
width = 16
heads = 2
inner = 32
embedding = 16
positions = {width}

[optimiser]
learning_rate = 3e-3
warmup_steps = 4

[policy]
file = "{party}/policy.toml"
"""


@dataclass(frozen=True)
class Tongues:
    """Where the files of a run lie. generators: settings by party."""

    folder: Path
    job: Path
    generators: dict[str, Path]

    @property
    def run(self) -> Path:
        """The hub's run folder."""
        return self.folder / "hub" / "run"


def tongues(
    folder: Path,
    languages: dict[str, str],
    *,
    rounds: int = 1,
    steps: int = 8,
    least: int | None = None,
    more: str = "",
    save_every: int = 5,
    control: int = 1,
    port: int = 1,
    listen: int = 0,
) -> Tongues:
    """Write everything; `languages` by party. more: further lines of a generator's [vocabulary]."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary().save(folder / "tokenizer.json")
    hub = make_identity(folder, "hub", Role.DISCRIMINATOR)
    (folder / "hub").mkdir(exist_ok=True)
    shutil.copyfile(POLICIES / "discriminator.toml", folder / "hub" / "policy.toml")
    job = folder / "pretrain.toml"
    job.write_text(
        _JOB.format(
            identity=hub.folder,
            rounds=rounds,
            steps=steps,
            least=least or len(languages),
            width=WIDTH,
            control=control,
            listen=listen,
            save_every=save_every,
        )
    )
    generators = {}
    for number, (party, language) in enumerate(languages.items()):
        identity = make_identity(folder, party, Role.GENERATOR)
        (folder / party).mkdir(exist_ok=True)
        shutil.copyfile(POLICIES / "generator.toml", folder / party / "policy.toml")
        settings = generators[party] = folder / f"{party}.toml"
        settings.write_text(
            _GENERATOR.format(
                party=party,
                identity=identity.folder,
                language=language,
                text=text_file(folder / party, seed=number),
                width=WIDTH,
                more=more,
                port=port,
            )
        )
    return Tongues(folder, job, generators)
