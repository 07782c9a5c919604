"""What both ends of a stream agree on before a round, and what an engine tells whoever watches one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from splitlearn.wire.ids import IdBatch
from splitlearn.wire.messages import Round

__all__ = [
    "Batches",
    "Joined",
    "Kept",
    "Learner",
    "Learnt",
    "Left",
    "RoundEvent",
    "Score",
    "Scored",
    "Source",
    "Streamed",
    "Terms",
    "Trained",
    "WatchRound",
]


class Source(Protocol):
    """Where a generator's batches come from: it trains on its own text and corrupts it."""

    @property
    def index(self) -> int:
        """Of the next batch."""
        ...

    @property
    def size(self) -> int:
        """Tokens of the text, for the mix of languages."""
        ...

    def skip_to(self, index: int) -> None:
        """Let batches go, so that `index` is the next one."""
        ...

    def step(self) -> tuple[IdBatch, float]:
        """Train one step; the batch it corrupted, and its masked-language loss in nats."""
        ...

    def held_out(self, number: int) -> IdBatch:
        """A batch of text that never trains: the same for the same number."""
        ...


class Learnt(Protocol):
    """One step of a discriminator. loss: mean binary cross-entropy a token, in nats."""

    @property
    def loss(self) -> float: ...

    @property
    def accuracy(self) -> float: ...

    @property
    def replaced(self) -> float: ...

    @property
    def tokens(self) -> int: ...


class Score(Protocol):
    """How well replaced tokens of held-out text are told: area under the curve, 0.5 is guessing."""

    @property
    def auc(self) -> float | None: ...

    @property
    def accuracy(self) -> float: ...

    @property
    def loss(self) -> float: ...

    @property
    def tokens(self) -> int: ...


class Learner(Protocol):
    """The discriminator's model and optimiser."""

    @property
    def steps(self) -> int: ...

    def train(self, batch: IdBatch) -> Learnt:
        """One optimiser step on one batch."""
        ...

    def score(self, batches: list[IdBatch]) -> Score:
        """No training."""
        ...


Batches = Callable[[Round], Source]


@dataclass(frozen=True)
class Terms:
    """What the discriminator asks of every generator in a run. Seconds are wall time.

    examples, width: the most that a batch may have. masked: share of tokens. steps: of the
    discriminator in one round. held_out: batches of each language that score it. deadline_s: a round
    ends by then, whatever came. silence_s: how long a generator may be silent when its turn comes.
    gather_s: how long a round waits for more than `least` generators to begin with. buffer: batches
    of each generator held here. save_every: steps between checkpoints.
    """

    run: str
    job: str
    vocabulary: int
    vocabulary_digest: str
    seed: int
    examples: int
    width: int
    masked: float
    steps: int
    held_out: int = 8
    alpha: float = 0.5
    by: str = "size"
    deadline_s: float = 600.0
    silence_s: float = 20.0
    gather_s: float = 30.0
    least: int = 1
    buffer: int = 8
    save_every: int = 100


@dataclass(frozen=True)
class Joined:
    """A generator streams."""

    party: str
    language: str


@dataclass(frozen=True)
class Left:
    """A generator was dropped, or was cut off; why, in one sentence."""

    party: str
    why: str


@dataclass(frozen=True)
class Trained:
    """A step of the discriminator. fill: batches that wait here, by language. waited_s: for this one."""

    step: int
    language: str
    loss: float
    accuracy: float
    replaced: float
    tokens: int
    waited_s: float
    fill: dict[str, int]


@dataclass(frozen=True)
class Scored:
    """One language's held-out score after a round."""

    round: int
    language: str
    auc: float | None
    accuracy: float
    loss: float
    tokens: int


@dataclass(frozen=True)
class Kept:
    """A checkpoint after so many steps lies on disk."""

    step: int


@dataclass(frozen=True)
class Streamed:
    """A generator has sent batch `index`. loss: of its own step, in nats."""

    index: int
    loss: float
    tokens: int


RoundEvent = Joined | Left | Trained | Scored | Kept | Streamed
WatchRound = Callable[[RoundEvent], None]
