"""The figures of a training step, and of what a simulation found: no more than data.

Never says who waits for whom: the clock and the wires are `world`'s, the parties `simulate`'s.
"""

from dataclasses import dataclass

__all__ = ["COMPUTE", "TRUSTED", "Chain", "Pipe", "Run", "Span", "StageCosts"]

# Names of those at work. Of several compute parties each has its number behind it.
TRUSTED, COMPUTE = "trusted", "compute"


@dataclass(frozen=True)
class Pipe:
    """One direction of a link. bits_per_s: None for no limit."""

    bits_per_s: float | None = None
    delay_s: float = 0.0

    def sending_s(self, size: int) -> float:
        """How long `size` bytes keep the wire busy."""
        return 8 * size / self.bits_per_s if self.bits_per_s else 0.0


@dataclass(frozen=True)
class StageCosts:
    """Seconds of one micro-batch in one compute party's stage, its coders and its log included.

    update_s: of its optimiser's step.
    """

    forward_s: float
    backward_s: float = 0.0
    update_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A step in figures, alike for all micro-batches.

    bottom_s, top_s, bottom_backward_s: seconds of the trusted party's actions, with decoding what they
    take and encoding what they send; top_s is forward, loss and backward. stages: the compute parties.
    activation, output, gradient, input_gradient: bytes of a message; without gradient no backward
    leaves, without input_gradient none comes back. hops, back_hops: bytes from each compute party to
    the next and back. up, down: the trusted party's link; between: from one compute party to another.
    relayed: hops go by way of the trusted party, which takes relay_s for each and relay_backward_s for
    each back. update_s: the trusted party's optimiser step. window: frames that may be untaken in one
    direction. settle_messages: heads and receipts are swapped after so many messages of both (0:
    never). staleness: how many steps more than one are under way; a stretch of them then ends before it
    has more than settle_messages. clips: before their updates all parties add up their gradients' norms.
    """

    micro_batches: int
    in_flight: int
    order: str = "fill-drain"
    bottom_s: float
    top_s: float
    bottom_backward_s: float = 0.0
    stages: tuple[StageCosts, ...]
    activation: int
    output: int
    gradient: int | None = None
    input_gradient: int | None = None
    hops: tuple[int, ...] = ()
    back_hops: tuple[int, ...] = ()
    up: Pipe = Pipe()
    down: Pipe = Pipe()
    between: Pipe = Pipe()
    relayed: bool = False
    relay_s: float = 0.0
    relay_backward_s: float = 0.0
    update_s: float = 0.0
    window: int = 1 << 30
    settle_messages: int = 0
    staleness: int = 0
    clips: bool = False

    def __post_init__(self) -> None:
        between = len(self.stages) - 1
        if not self.stages or len(self.hops) != between:
            raise ValueError(
                f"{len(self.stages)} stages and {len(self.hops)} hops; one less is right"
            )
        if self.gradient is not None and len(self.back_hops) != between:
            raise ValueError(f"{len(self.back_hops)} hops back; expected {between}")
        if self.gradient is None and self.input_gradient is not None:
            raise ValueError("an input gradient comes back only where a gradient leaves")
        if self.clips and (self.gradient is None or self.staleness):
            raise ValueError("norms are added up where gradients leave, and at a staleness of 0")
        if self.staleness and between:
            raise ValueError("steps interleave with one stage only; a staleness of 0 is right")

    @property
    def parties(self) -> int:
        """Compute parties that the trusted party's own schedule tells apart."""
        return len(self.stages) if self.relayed else 1

    def messages(self, party: int = 0) -> int:
        """Frames of a step between the trusted party and one that its schedule tells apart."""
        returns = self.input_gradient is not None or (party > 0 and self.gradient is not None)
        # A norm there, and the factor back.
        return (2 + (self.gradient is not None) + returns) * self.micro_batches + 2 * self.clips


@dataclass(frozen=True)
class Span:
    """Something that took time. lane: a worker or a wire, such as "compute" or "trusted > compute"."""

    lane: str
    what: str
    micro_batch: int
    step: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Run:
    """What a simulation found. ends_s: when the trusted party was done with each step.

    left_out: first steps that say nothing of the long run: the one that finds everybody idle, or, where
    steps interleave, all up to the first drain, for before it later steps have begun.
    """

    spans: tuple[Span, ...]
    ends_s: tuple[float, ...]
    left_out: int = 1

    @property
    def step_s(self) -> float:
        """Seconds of a step in the long run; of one step, or one stretch, as it is."""
        first = self.left_out if len(self.ends_s) > self.left_out else 0
        began_s = self.ends_s[first - 1] if first else 0.0
        return (self.ends_s[-1] - began_s) / (len(self.ends_s) - first)

    def busy_s(self, lane: str) -> float:
        """Seconds a step in which `lane` was at work."""
        whole_s = sum(span.end_s - span.begin_s for span in self.spans if span.lane == lane)
        return whole_s / len(self.ends_s)
