"""What an engine tells whoever watches it: plain facts, no text, no tensors."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "Answered",
    "Began",
    "Evaluated",
    "Event",
    "Finished",
    "Observe",
    "RolledBack",
    "Saved",
    "SentWeights",
    "StepDone",
    "Watched",
    "all_of",
]


@dataclass(frozen=True)
class Began:
    """A conversation is open and goes on after `step` optimiser steps."""

    step: int
    peer: str


@dataclass(frozen=True)
class SentWeights:
    """Shard `index` of `count` of the trunk's weights has been handed to the channel."""

    index: int
    count: int


@dataclass(frozen=True)
class StepDone:
    """One optimiser step. Seconds are wall time, bytes are whole frames of this step.

    norm: of the whole model's gradient before it was clipped, where it is.
    """

    step: int
    loss: float
    seconds: float
    sent_bytes: int
    received_bytes: int
    norm: float | None = None


@dataclass(frozen=True)
class Evaluated:
    """`done` micro-batches of an evaluation have come back."""

    done: int


@dataclass(frozen=True)
class Watched:
    """Held-out data were scored during training, after `step` steps."""

    step: int
    score: float


@dataclass(frozen=True)
class Saved:
    """Both parties hold a checkpoint after `step` steps."""

    step: int


@dataclass(frozen=True)
class RolledBack:
    """The peer came back as a new process; the run goes on from an older checkpoint."""

    peer: str


@dataclass(frozen=True)
class Finished:
    """The peer has said goodbye."""

    step: int


@dataclass(frozen=True)
class Answered:
    """The compute party has done its part of training step `step`."""

    step: int


Event = (
    Answered | Began | SentWeights | StepDone | Evaluated | Watched | Saved | RolledBack | Finished
)
Observe = Callable[[Event], None]


def all_of(*observers: Observe) -> Observe:
    """One observer that tells each of `observers` in turn. What one raises ends the run."""

    def tell(event: Event) -> None:
        for observe in observers:
            observe(event)

    return tell
