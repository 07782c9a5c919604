"""An encoder party and a decoder party in one process: real logs, gates, sessions, a channel in memory.

Halves are tiny BERTs with random weights; sentences are of made-up words.
"""

import hashlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing
from transformers import BertConfig, PreTrainedTokenizerFast

from splitlearn.audit import Log
from splitlearn.channel.base import PeerRestarted
from splitlearn.channel.memory import pair
from splitlearn.engine.events import Event, Observe
from splitlearn.engine.pair.decoding import DecoderEngine
from splitlearn.engine.pair.encoding import EncoderEngine
from splitlearn.engine.pair.pairing import Corpus, DecoderRun, EncoderHalf
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.errors import SplitLearnError
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.policy import Policy, load
from splitlearn.roles import Role
from splitlearn.session import PairSession
from splitlearn.translation import DecoderShape, EncoderShape, SourceEncoder, TargetDecoder
from splitlearn.translation.frozen import build_bert
from splitlearn.translation.text import Sentences, Special
from splitlearn.wire.messages import OptimiserSpec, Pairing, ScheduleSpec

POLICIES = Path(__file__).parent.parent / "parties" / "policies"
NAMES = {
    role: PartyName(federation="example.org", party=party, role=role)
    for role, party in ((Role.ENCODER, "source"), (Role.DECODER, "target"))
}
WORDS = 40
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer() -> PreTrainedTokenizerFast:
    words = (*SPECIAL, *(f"w{i}" for i in range(WORDS)))
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
    )


def config() -> BertConfig:
    return BertConfig(
        vocab_size=WORDS + len(SPECIAL),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        pad_token_id=0,
    )


def corpora(train: int = 24, evaluate: int = 6) -> tuple[Corpus, Corpus]:
    """Source and target sides; a target is its source backwards. Each has samples the other lacks."""
    draw = random.Random(5)
    texts = {
        f"s{i}": [f"w{draw.randrange(WORDS)}" for _ in range(draw.randrange(3, 11))]
        for i in range(train + evaluate)
    }
    sides = []
    for missing, turned in (("s3", False), ("s7", True)):
        lines = {
            sample: " ".join(reversed(words) if turned else words)
            for sample, words in texts.items()
            if sample != missing
        }
        names = sorted(lines, key=lambda name: int(name[1:]))
        held = [name for name in names if int(name[1:]) >= train]
        parts = [
            Sentences({name: lines[name] for name in chosen}, tokenizer=tokenizer(), max_length=16)
            for chosen in ([name for name in names if name not in held], held)
        ]
        sides.append(Corpus(*parts))
    return sides[0], sides[1]


def terms(**changes: object) -> Pairing:
    plain: dict[str, object] = {
        "run": "pairs",
        "conversation": "0" * 32,
        "job": "f" * 64,
        "salt": "5" * 64,
        "naming": "7" * 64,
        "trains": True,
        "width": 32,
        "examples": 32,
        "length": 17,
        "activation": "identity",
        "gradient": "identity",
        "optimiser": OptimiserSpec("adamw", 1e-3, 0.0, 0.9, 0.98, 1e-8),
        "schedule": ScheduleSpec("inverse_sqrt", 4, 10),
        "seed": 3,
        "held": (),
    }
    return Pairing(**{**plain, **changes})  # type: ignore[arg-type]


def encoder(wanted: Pairing) -> SourceEncoder:
    shape = EncoderShape(inner=16, trains=wanted.trains)
    half = SourceEncoder(build_bert(config(), seed=1), shape=shape, seed=wanted.seed)
    if not wanted.trains:
        draw = torch.Generator().manual_seed(9)
        for name, weight in half.adapters.named_parameters():
            if name.endswith("down.weight"):
                torch.nn.init.normal_(weight, std=0.1, generator=draw)
    return half


def decoder() -> TargetDecoder:
    words = torch.arange(len(SPECIAL), len(SPECIAL) + WORDS)
    shape = DecoderShape(inner=32, reach=8)
    return TargetDecoder(build_bert(config(), seed=2), words_V=words, shape=shape, seed=11)


@dataclass
class Meeting:
    """Both parties below one folder. `close` ends what still runs."""

    folder: Path
    policies: dict[Role, Policy] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    halves: list[SourceEncoder] = field(default_factory=list)
    logs: dict[Role, Log] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    engines: list[DecoderEngine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = pair(names=(NAMES[Role.ENCODER].dns, NAMES[Role.DECODER].dns))

    def log(self, role: Role) -> Log:
        if role not in self.logs:
            seed = hashlib.sha256(role.value.encode()).digest()
            self.logs[role] = Log.open(
                self.folder / role.value / "audit",
                origin=NAMES[role].dns,
                signer=Ed25519PrivateKey.from_private_bytes(seed),
                clock=lambda: 1.7e9,
            )
        return self.logs[role]

    def open_gate(self, role: Role) -> Callable[[Pairing, PairSession], Gate]:
        other = Role.DECODER if role is Role.ENCODER else Role.ENCODER
        return lambda offer, session: Gate.open(
            self.policies.get(role) or load(POLICIES / f"{role.value}.toml"),
            log=self.log(role),
            session=session,
            me=NAMES[role],
            peer=NAMES[other],
            binding="e" * 64,
            offer=offer,
            software="splitlearn test",
        )

    def half(self, wanted: Pairing) -> EncoderHalf:
        self.halves.append(encoder(wanted))
        return EncoderHalf(self.halves[-1], corpora()[0], self.folder / "encoder" / "checkpoints")

    def serve(self) -> None:
        """Run the encoder party in a thread until its run ends, however often its peer restarts."""
        mine = self.ends[0]
        engine = EncoderEngine(
            mine,
            open_gate=self.open_gate(Role.ENCODER),
            half_of=self.half,
            deadline_s=20.0,
            observe=lambda _: None,
        )

        def run() -> None:
            try:
                while True:
                    try:
                        return engine.serve()
                    except PeerRestarted:
                        continue
            except SplitLearnError as error:
                if mine is self.ends[0]:  # else the process was killed
                    self.failures.append(error)
                    mine.close(reason=str(error))

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def restart(self, role: Role) -> None:
        """Kill a party's process. An encoder party is at work again when this returns."""
        old = self.ends
        if role is Role.DECODER:
            self.ends = (old[0], old[1].restart())
            return
        spare = pair(names=(NAMES[Role.ENCODER].dns, NAMES[Role.DECODER].dns))
        self.ends = (spare[0], old[1])  # what the killed one says is no failure
        fresh = old[0].restart()
        self.threads.pop().join(10)
        self.ends = (fresh, old[1])
        self.serve()

    def decode(
        self,
        wanted: Pairing,
        *,
        every: int = 4,
        cache_bytes: int = 2**20,
        observe: Observe | None = None,
    ) -> DecoderEngine:
        run = DecoderRun(
            terms=wanted,
            decoder=decoder(),
            corpus=corpora()[1],
            special=Special(2, 3, 0, 4),
            batch=5,
            every=every,
            deadline_s=20.0,
            cache_bytes=cache_bytes,
            candidates=2,
        )
        engine = DecoderEngine(
            run,
            self.ends[1],
            open_gate=self.open_gate(Role.DECODER),
            checkpoints=Checkpoints(self.folder / "decoder" / "checkpoints"),
            observe=observe or self.events.append,
        )
        self.engines.append(engine)
        return engine

    def close(self) -> None:
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)
        for log in self.logs.values():
            log.close()
