"""An encoder party and a decoder party on disk: a tiny model, sentence pairs, identities, settings."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from parties import encoder
from splitlearn.roles import Role
from splitlearn.translation.frozen import build_bert
from tests.federation import make_identity
from tests.jobs import a_port
from tests.pairs import WORDS, config, tokenizer

_POLICIES = Path(__file__).parent.parent / "parties" / "policies"

_SETTINGS = """
[run]
{run}
deadline_s = 30
[identity]
folder = "{identity}"
[peer]
party = "{peer}"
{way} = "127.0.0.1:{port}"
[model]
path = "model"
[data]
train = "{party}/train.txt"
evaluate = "{party}/val.txt"
max_length = 16
[adapters]
inner = 16
{more}
[policy]
file = "{party}/policy.toml"
"""

_MORE = """encoder_trains = {trains}
reach = 8
[codec]
activation = "{codec}"
gradient = "{codec}"
[schedule]
steps = {steps}
batch_size = 8
save_every = 3
[decoding]
iterations = 3
candidates = 2
"""


@dataclass
class Bilingual:
    """The files of both parties below `folder`."""

    folder: Path
    port: int = field(default_factory=a_port)
    encoder: Path = field(init=False)
    decoder: Path = field(init=False)

    def __post_init__(self) -> None:
        build_bert(config(), seed=1).save_pretrained(self.folder / "model")
        tokenizer().save_pretrained(self.folder / "model")
        draw = random.Random(3)
        for name, count in (("train", 30), ("val", 5)):
            lines = [
                [f"w{draw.randrange(WORDS)}" for _ in range(draw.randrange(3, 10))]
                for _ in range(count)
            ]
            for party, turned in (("source", False), ("target", True)):
                (self.folder / party).mkdir(exist_ok=True)
                texts = [" ".join(reversed(words) if turned else words) for words in lines]
                (self.folder / party / f"{name}.txt").write_text("\n".join(texts) + "\n")
        self.encoder = self._settings("source", Role.ENCODER, peer="target", way="listen")
        self.decoder = self.decoding()

    def decoding(
        self, *, name: str = "turned", trains: bool = True, codec: str = "identity", steps: int = 6
    ) -> Path:
        """decoder.toml written anew."""
        more = _MORE.format(trains=str(trains).lower(), codec=codec, steps=steps)
        return self._settings(
            "target", Role.DECODER, peer="source", way="dial", more=more, name=name
        )

    @contextmanager
    def serving(self, *, runs: int = 1) -> Iterator[None]:
        """The encoder party at work in a thread, until so many runs are finished."""
        thread = threading.Thread(
            target=encoder.serve, args=(self.encoder,), kwargs={"runs": runs, "threads": 1}
        )
        thread.start()
        yield
        thread.join(60)
        assert not thread.is_alive()

    def _settings(
        self, party: str, role: Role, *, peer: str, way: str, more: str = "", name: str = ""
    ) -> Path:
        identity = make_identity(self.folder, party, role)
        policy = (_POLICIES / f"{role.value}.toml").read_text(encoding="utf-8")
        (self.folder / party / "policy.toml").write_text(policy, encoding="utf-8")
        own = f'name = "{name}"\nfolder = "target/{name}"' if name else f'folder = "{party}/run"'
        path = self.folder / f"{role.value}.toml"
        path.write_text(
            _SETTINGS.format(
                run=own,
                identity=identity.folder,
                peer=peer,
                way=way,
                port=self.port,
                party=party,
                more=more,
            )
        )
        return path
