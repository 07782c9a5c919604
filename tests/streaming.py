"""Generators and a discriminator in one process: real logs, gates, sessions and channels in memory.

What trains is a few numbers instead of a model, so that a test can say what must come out.
"""

import hashlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import Log
from splitlearn.channel.base import Channel, PeerRestarted
from splitlearn.channel.memory import MemoryChannel, pair
from splitlearn.engine.streams.discriminator import DiscriminatorEngine
from splitlearn.engine.streams.generator import GeneratorEngine
from splitlearn.engine.streams.roster import Arrival
from splitlearn.engine.streams.rounds import RoundEvent, Source, Terms
from splitlearn.errors import SplitLearnError
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.policy import load
from splitlearn.roles import Role
from splitlearn.session import StreamSession
from splitlearn.wire.ids import IdBatch
from splitlearn.wire.messages import Report, Round

POLICIES = Path(__file__).parent.parent / "parties" / "policies"
HUB = PartyName(federation="example.org", party="hub", role=Role.DISCRIMINATOR)
VOCABULARY = 1_000
DIGEST = "a" * 64


def terms(**changes: object) -> Terms:
    plain = Terms(
        run="tongues",
        job="f" * 64,
        vocabulary=VOCABULARY,
        vocabulary_digest=DIGEST,
        seed=1,
        examples=4,
        width=16,
        masked=0.15,
        steps=12,
        held_out=2,
        deadline_s=30.0,
        silence_s=2.0,
        gather_s=0.0,
        least=3,
        buffer=4,
        save_every=5,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@dataclass
class Numbers:
    """Batches whose ids say whose they are and which: (party's number, index) again and again."""

    party: int
    index: int = 0
    size: int = 1_000
    slow_s: float = 0.0
    made: list[int] = field(default_factory=list)

    def batch(self, index: int) -> IdBatch:
        ids = np.array([self.party, index % VOCABULARY] * 8, np.int32)
        return IdBatch(ids, np.arange(16) % 5 == 0, (9, 7))

    def skip_to(self, index: int) -> None:
        self.index = index

    def step(self) -> tuple[IdBatch, float]:
        time.sleep(self.slow_s)
        self.made.append(self.index)
        self.index += 1
        return self.batch(self.index - 1), 3.0 + self.party

    def held_out(self, number: int) -> IdBatch:
        return self.batch(900 + number)


@dataclass(frozen=True)
class Learnt:
    loss: float
    accuracy: float = 0.5
    replaced: float = 0.2
    tokens: int = 16


@dataclass(frozen=True)
class Score:
    auc: float
    accuracy: float = 0.5
    loss: float = 0.7
    tokens: int = 32


class Digester:
    """A learner whose weights are a digest of all it was trained on, in order."""

    def __init__(self) -> None:
        self.state = "0" * 64
        self.steps = 0
        self.seen: list[tuple[int, int]] = []

    def train(self, batch: IdBatch) -> Learnt:
        self.seen.append((int(batch.ids[0]), int(batch.ids[1])))
        text = self.state.encode() + batch.ids.tobytes() + batch.replaced.tobytes()
        self.state = hashlib.sha256(text).hexdigest()
        self.steps += 1
        return Learnt(loss=float(batch.ids[0]))

    def score(self, batches: Iterable[IdBatch]) -> Score:
        found = [int(batch.ids[1]) for batch in batches]
        return Score(auc=found[0] / 1_000, tokens=16 * len(found))

    def digest(self) -> str:
        return self.state

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "state.json").write_bytes(msgspec.json.encode((self.state, self.steps)))

    def load(self, folder: Path) -> None:
        self.state, self.steps = msgspec.json.decode(
            (folder / "state.json").read_bytes(), type=tuple[str, int]
        )


class Hall:
    """Where generators meet a discriminator. `close` ends what still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue: queue.Queue[Arrival] = queue.Queue()
        self.events: list[RoundEvent] = []
        self.reports: dict[str, Report] = {}
        self.failures: dict[str, BaseException] = {}
        self.ends: dict[str, tuple[MemoryChannel, MemoryChannel]] = {}
        self.threads: list[threading.Thread] = []
        self._logs: dict[Path, Log] = {}
        self._salts: dict[str, str] = {}

    def arrivals(self, timeout_s: float) -> Arrival | None:
        try:
            return self.queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def discriminator(
        self, learner: Digester, *, wanted: Terms, watch: Callable[[RoundEvent], None] | None = None
    ) -> DiscriminatorEngine:
        return DiscriminatorEngine(
            learner,
            terms=wanted,
            folder=self.folder / "hub" / "checkpoints",
            arrivals=self.arrivals,
            watch=watch or self.events.append,
        )

    def log(self, folder: Path, name: PartyName) -> Log:
        if folder not in self._logs:
            self._logs[folder] = Log.open(
                folder,
                origin=name.dns,
                signer=Ed25519PrivateKey.from_private_bytes(
                    hashlib.sha256(name.dns.encode()).digest()
                ),
                clock=lambda: 1.7e9,
            )
        return self._logs[folder]

    def open_gate(
        self, *, me: PartyName, peer: PartyName
    ) -> Callable[[Round, StreamSession], Gate]:
        folder = self.folder / me.party / f"audit-{peer.party}"
        return lambda offer, session: Gate.open(
            load(POLICIES / f"{me.role}.toml"),
            log=self.log(folder, me),
            session=session,
            me=me,
            peer=peer,
            binding="e" * 64,
            offer=offer,
            software="splitlearn test",
        )

    def connect(self, party: str) -> MemoryChannel:
        """A generator's end of a new channel, the other end of which waits at the door."""
        name = PartyName(federation="example.org", party=party, role=Role.GENERATOR)
        ends = pair(names=(name.dns, HUB.dns))
        self.ends[party] = ends
        self.queue.put(
            Arrival(
                channel=ends[1],
                party=party,
                salt=self._salts.setdefault(party, secrets.token_hex(32)),
                open_gate=self.open_gate(me=HUB, peer=name),
            )
        )
        return ends[0]

    def generate(
        self,
        party: str,
        language: str,
        source: Source,
        *,
        channel: Channel | None = None,
        digest: str = DIGEST,
        watch: Callable[[RoundEvent], None] = lambda _: None,
    ) -> None:
        """Run a generator in a thread until its round ends, however often its peer restarts."""
        name = PartyName(federation="example.org", party=party, role=Role.GENERATOR)
        engine = GeneratorEngine(
            channel or self.connect(party),
            language=language,
            vocabulary_digest=digest,
            batches=lambda _: source,
            open_gate=self.open_gate(me=name, peer=HUB),
            save=lambda _: None,
            deadline_s=20.0,
            watch=watch,
        )

        def run() -> None:
            try:
                while True:
                    try:
                        self.reports[party] = engine.serve()
                        return
                    except PeerRestarted:
                        continue
            except SplitLearnError as error:
                self.failures[party] = error

        thread = threading.Thread(target=run, name=f"generator {party}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait until every generator has ended."""
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)

    def close(self) -> None:
        self.join()
        for log in self._logs.values():
            log.close()
