"""The legal conversation between two parties, as tables; no I/O, no tensors, no clock.

Both parties run the same tables over what they say (`stamp`) and what they hear (`check`), so an
illegal message is refused where it would be sent and again where it arrives. A message is legal if
its sequence number is the next one, its sender's role may say its kind, the conversation's state
allows it, and, for the tensors of a step, its micro-batch is at that point of its exchange.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from splitlearn.errors import SessionError
from splitlearn.roles import Kind, Role
from splitlearn.session.legal import Endpoint, Table
from splitlearn.wire.messages import (
    Finish,
    Hops,
    Meta,
    Norm,
    Offer,
    Resume,
    Scale,
    Step,
    StepTensor,
)

__all__ = ["EXCHANGE", "MAX_UNSETTLED", "NEXT", "Progress", "Session", "State"]

# No step begins while more messages than this are without receipt and countersigned heads: what a
# party could still deny or rewrite is never more than these and one step.
MAX_UNSETTLED = 256


class State(StrEnum):
    """Where a conversation stands."""

    IDLE = "idle"
    OFFERED = "offered"
    AGREED = "agreed"
    LOADING = "loading"
    STARTING = "starting"
    OPEN = "open"
    MEASURING = "measuring"
    SCALING = "scaling"
    SAVING = "saving"
    SETTLING = "settling"
    COUNTERSIGNING = "countersigning"
    FINISHING = "finishing"
    CLOSED = "closed"


class Progress(StrEnum):
    """Where the exchange of one micro-batch stands."""

    NEW = "new"
    IN_TRUNK = "in trunk"
    RETURNED = "returned"
    IN_BACKWARD = "in backward"
    DONE = "done"


# Who sends a kind is fixed by roles.MAY_SEND except for weights, which travel both ways.
NEXT: Table[State] = {
    State.IDLE: {(Role.TRUSTED, Kind.OFFER): State.OFFERED},
    State.OFFERED: {(Role.COMPUTE, Kind.ACCEPT): State.AGREED},
    State.AGREED: {
        (Role.TRUSTED, Kind.WEIGHTS): State.LOADING,
        (Role.TRUSTED, Kind.RESUME): State.STARTING,
    },
    State.LOADING: {
        (Role.TRUSTED, Kind.WEIGHTS): State.LOADING,
        (Role.TRUSTED, Kind.RESUME): State.STARTING,
    },
    State.STARTING: {(Role.COMPUTE, Kind.READY): State.OPEN},
    State.OPEN: {
        (Role.TRUSTED, Kind.ACTIVATION): State.OPEN,
        (Role.COMPUTE, Kind.OUTPUT): State.OPEN,
        (Role.TRUSTED, Kind.GRADIENT): State.OPEN,
        (Role.COMPUTE, Kind.INPUT_GRADIENT): State.OPEN,
        (Role.TRUSTED, Kind.CHECKPOINT): State.SAVING,
        (Role.TRUSTED, Kind.SETTLE): State.SETTLING,
        (Role.TRUSTED, Kind.FINISH): State.FINISHING,
    },
    # Where a step ends, and gradients are clipped by their length over all parties.
    State.MEASURING: {(Role.COMPUTE, Kind.NORM): State.SCALING},
    State.SCALING: {(Role.TRUSTED, Kind.SCALE): State.OPEN},
    State.SAVING: {(Role.COMPUTE, Kind.SAVED): State.OPEN},
    State.SETTLING: {(Role.COMPUTE, Kind.SETTLED): State.COUNTERSIGNING},
    State.COUNTERSIGNING: {(Role.TRUSTED, Kind.COUNTERSIGNED): State.OPEN},
    State.FINISHING: {
        (Role.COMPUTE, Kind.WEIGHTS): State.FINISHING,
        (Role.COMPUTE, Kind.CLOSED): State.CLOSED,
    },
    State.CLOSED: {},
}

EXCHANGE: dict[Progress, dict[Kind, Progress]] = {
    Progress.NEW: {Kind.ACTIVATION: Progress.IN_TRUNK},
    Progress.IN_TRUNK: {Kind.OUTPUT: Progress.RETURNED},
    Progress.RETURNED: {Kind.GRADIENT: Progress.IN_BACKWARD},
    Progress.IN_BACKWARD: {Kind.INPUT_GRADIENT: Progress.DONE},
    Progress.DONE: {},
}

# In a direct chain the trusted party speaks of rows with its two ends only: what the one is sent comes out at
# the other, and gradients the other way. With those between it has nothing to exchange.
FIRST: dict[Progress, dict[Kind, Progress]] = {
    Progress.NEW: {Kind.ACTIVATION: Progress.IN_TRUNK},
    Progress.IN_TRUNK: {Kind.INPUT_GRADIENT: Progress.DONE},
}
LAST: dict[Progress, dict[Kind, Progress]] = {
    Progress.NEW: {Kind.OUTPUT: Progress.RETURNED},
    Progress.RETURNED: {Kind.GRADIENT: Progress.IN_BACKWARD},
}


_BETWEEN_STEPS = frozenset({Kind.FINISH, Kind.SETTLE})
# Modes in which compute parties may be neighbours.
_DIRECT = ("features", "lora", "full")


@dataclass
class Group:
    """The micro-batches of one step (or of one part of an evaluation) under way."""

    step: int
    phase: str
    ends_at: Progress
    progress: list[Progress]
    left: int

    @property
    def complete(self) -> bool:
        return self.left == 0


@dataclass
class Session(Endpoint[State]):
    """One party's view of one conversation. `me` and `peer` are roles, TRUSTED and COMPUTE.

    A conversation lives as long as both processes do; when one comes back as a new process, both
    start a new Session and agree on a checkpoint with OFFER, ACCEPT and RESUME.
    """

    state: State = State.IDLE
    next_step: int = 0
    weights_wanted: bool = False
    offer: Offer | None = None
    # Texts that are gone on with, and the tokens of each that the compute party has.
    going_on: tuple[int, int] = (0, 0)
    # Those under way, oldest first: one, or as many more as the offer's staleness.
    groups: list[Group] = field(default_factory=list, repr=False)

    def _table(self) -> Table[State]:
        return NEXT

    def _judge(self, kind: Kind, meta: Meta, *, following: State) -> State:
        if isinstance(meta, StepTensor):
            if self._exchange(kind, meta) and self.offer is not None and self.offer.detail.clips:
                following = State.MEASURING
        elif isinstance(meta, Norm | Scale):
            self._at_end(kind, meta.step)
        elif isinstance(meta, Step):
            self._at_step(kind, meta)
        elif kind in _BETWEEN_STEPS and self.groups:
            raise SessionError(f"{kind} in the middle of step {self.groups[0].step}")
        elif kind is Kind.WEIGHTS and self.state is State.FINISHING:
            self._hand_back(kind)
        if isinstance(meta, Offer):
            self._take(meta)
        if isinstance(meta, Finish):
            self.weights_wanted = meta.weights
        if isinstance(meta, Resume):
            self.next_step = meta.step
        return following

    def _at_step(self, kind: Kind, meta: Step) -> None:
        step = meta.step
        if kind is Kind.CHECKPOINT:
            self._leave_out(step)
        latest = step if kind is Kind.CHECKPOINT else -1
        if meta.best is not None and meta.best > latest:
            raise SessionError(
                f"{kind} of step {step} has step {meta.best} kept; a {Kind.CHECKPOINT} may name itself or "
                "an earlier one"
            )
        if step != self.next_step or self.groups:
            raise SessionError(
                f"{kind} names step {step} while {self._view()}; "
                f"expected {self.next_step}, between two steps"
            )

    def _at_end(self, kind: Kind, step: int) -> None:
        if step != self.next_step - 1:
            raise SessionError(
                f"{kind} names step {step}; {self._view()} has just ended the one before"
            )

    def _take(self, offer: Offer) -> None:
        if offer.detail.clips and (not offer.trains_trunk or offer.schedule.staleness):
            raise SessionError(
                f"an offer of mode {offer.mode} and staleness {offer.schedule.staleness} asks for "
                f"{Kind.NORM} and {Kind.SCALE}; they are for exact steps in which the trunk trains"
            )
        hops, detail = offer.detail.hops, offer.detail
        if hops is not None and (
            hops == Hops(None, None)
            or offer.mode not in _DIRECT
            or offer.purpose == "generate"
            or offer.schedule.staleness
            or detail.clips
            or detail.repeats
        ):
            raise SessionError(
                f"an offer to {offer.purpose} in mode {offer.mode}, with a staleness of "
                f"{offer.schedule.staleness}, names neighbours; what goes straight from one compute party to "
                "the next is exact steps in mode features, lora or full, unclipped, of which none is left out"
            )
        self.offer = offer

    def _hand_back(self, kind: Kind) -> None:
        if not self.weights_wanted or self.offer is None or not self.offer.trains_trunk:
            raise SessionError(f"{kind} handed back that nobody asked for; {self._view()}")

    def _exchange(self, kind: Kind, meta: StepTensor) -> bool:
        """One tensor of a step; whether it ended one of training.

        Micro-batches never overtake each other, nor does a later step's.
        """
        self._beside(kind, meta)
        found = [g for g in self.groups if (g.step, g.phase) == (meta.step, meta.phase)]
        group = found[0] if found else self._open_group(kind, meta)
        if meta.micro_batches != len(group.progress) or meta.micro_batch >= len(group.progress):
            raise SessionError(
                f"{kind} is micro-batch {meta.micro_batch} of {meta.micro_batches} of step "
                f"{meta.step}; the step was opened with {len(group.progress)}"
            )
        at = group.progress[meta.micro_batch]
        after = None if at is group.ends_at else self._exchanged.get(at, {}).get(kind)
        if after is None or self._before(group, meta.micro_batch) is at:
            raise SessionError(
                f"{kind} for micro-batch {meta.micro_batch} of step {meta.step}, "
                f"which is {at.value}; {self._view()}"
            )
        group.progress[meta.micro_batch] = after
        group.left -= after is group.ends_at
        before = self.next_step
        while self.groups and self.groups[0].complete:
            done = self.groups.pop(0)
            if done.phase == "train":
                self.next_step = done.step + 1
        return self.next_step > before

    def _beside(self, kind: Kind, meta: StepTensor) -> None:
        """A memory has a text for each of the decoder's own; the answer to both is of these alone.

        Where texts are gone on with it comes with the first tokens, and is kept for those after.
        """
        memory = meta.memory
        if memory is None:
            return
        texts, generates = (len(memory.lengths), len(meta.lengths)), meta.phase == "generate"
        later = generates and min(meta.lengths, default=0) != meta.width
        if kind is Kind.OUTPUT or texts[0] != texts[1] or meta.packed is generates or later:
            raise SessionError(
                f"{kind} of phase {meta.phase} has a memory of {texts[0]} texts beside {texts[1]}, packed: "
                f"{meta.packed}; an activation has one text of a memory for each of its own, where texts are "
                "gone on with only their first has one, gradients have their rows alone, and padding never "
                "travels with it"
            )

    def _before(self, group: Group, micro_batch: int) -> Progress | None:
        """Where the micro-batch before this one stands, the step before's last one included."""
        if micro_batch:
            return group.progress[micro_batch - 1]
        place = self.groups.index(group)
        return self.groups[place - 1].progress[-1] if place else None

    def _open_group(self, kind: Kind, meta: StepTensor) -> Group:
        """Begin a step with its first activation."""
        ends_at = self._last(meta)
        if self.groups:
            self._may_open_another(kind, meta)
        if kind is Kind.ACTIVATION:
            self._leave_out(meta.step)
        following = self.next_step + len(self.groups)
        opens = kind in self._exchanged.get(Progress.NEW, {})
        if not opens or meta.step != following or meta.micro_batches < 1:
            raise SessionError(
                f"{kind} for {meta.phase} step {meta.step} while {self._view()}; "
                f"expected {self._opening} of step {following}"
            )
        if meta.phase == "generate":
            self._go_on(kind, meta)
        if self.unsettled > MAX_UNSETTLED:
            raise SessionError(
                f"{kind} for {meta.phase} step {meta.step} while {self.unsettled} messages are "
                f"without a receipt; {self._view()} expected {Kind.SETTLE} first"
            )
        group = Group(
            step=meta.step,
            phase=meta.phase,
            ends_at=ends_at,
            progress=[Progress.NEW] * meta.micro_batches,
            left=meta.micro_batches,
        )
        self.groups.append(group)
        return group

    @property
    def _exchanged(self) -> dict[Progress, dict[Kind, Progress]]:
        """What is exchanged with a party at this place of its chain."""
        hops = None if self.offer is None else self.offer.detail.hops
        if hops is None:
            return EXCHANGE
        if hops.before is None:
            return FIRST
        return LAST if hops.after is None else {}

    @property
    def _opening(self) -> str:
        kinds = self._exchanged.get(Progress.NEW, {})
        return " or ".join(f"the {kind}" for kind in kinds) or "no tensor here"

    def _leave_out(self, step: int) -> None:
        """Between two steps, go on to a later one that the trusted party names, if it did some alone."""
        if self.offer is None or self.groups:
            return
        if self.offer.detail.repeats or not self._exchanged:
            self.next_step = max(step, self.next_step)

    def _go_on(self, kind: Kind, meta: StepTensor) -> None:
        """New tokens of texts: either all of texts that begin, or the next ones of those that we had."""
        texts, (had_texts, had) = len(meta.lengths), self.going_on
        kept = min(meta.lengths, default=0) - meta.width
        equal = len(set(meta.lengths)) == 1 and not meta.packed and meta.micro_batches == 1
        if not equal or kept < 0 or (kept and (texts, kept) != (had_texts, had)):
            raise SessionError(
                f"{kind} goes on with {texts} texts after {kept} tokens of each, its lengths equal and "
                f"not packed: {equal}; {had_texts} texts of {had} tokens were there, so it is the next "
                "ones of all of these, or the whole of others"
            )
        self.going_on = (texts, meta.lengths[0])

    def _may_open_another(self, kind: Kind, meta: StepTensor) -> None:
        """Training steps may interleave, as many as were agreed on; nothing else may."""
        first = self.groups[0]
        ahead = 0 if self.offer is None else self.offer.schedule.staleness
        if {first.phase, meta.phase} != {"train"} or len(self.groups) > ahead:
            agreed = f"; {ahead} steps ahead were agreed on" if ahead else ""
            raise SessionError(
                f"{kind} for {meta.phase} step {meta.step} while {first.phase} step "
                f"{first.step} is not finished{agreed}"
            )

    def _last(self, meta: StepTensor) -> Progress:
        """Where an exchange ends under the job's mode: what is not agreed on is not legal."""
        offer = self.offer
        if offer is None:
            raise SessionError("a step before an offer")
        if meta.phase == "train" and offer.purpose != "train":
            raise SessionError(f"a training step in a run offered to {offer.purpose}")
        if (meta.phase == "generate") is not (offer.purpose == "generate"):
            raise SessionError(f"a {meta.phase} step in a run offered to {offer.purpose}")
        trains = meta.phase == "train" and offer.trains_trunk
        if self._exchanged is FIRST:
            return Progress.DONE if trains and offer.returns_input_gradient else Progress.IN_TRUNK
        if not trains:
            return Progress.RETURNED
        if self._exchanged is LAST:
            return Progress.IN_BACKWARD
        return Progress.DONE if offer.returns_input_gradient else Progress.IN_BACKWARD

    def _view(self) -> str:
        where = f"the {self.me} party's view is {self.state.value}, step {self.next_step}"
        if self.state is not State.OPEN or not self.groups:
            return where
        done = "; ".join(
            f"of step {group.step}: "
            + ", ".join(f"{i} {at.value}" for i, at in enumerate(group.progress))
            for group in self.groups
        )
        return f"{where} ({self.groups[0].phase} micro-batches {done})"
