"""Which setting of a job is fastest within what is wanted of it?

Every setting gets its lower bound; then they are simulated in the order of their bounds until no
bound left is below the best simulated step, so that the best is found without simulating all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from splitlearn.manifest.chains import needs_basis
from splitlearn.pipeline.chain import Chain, Run
from splitlearn.pipeline.costs import Costed, Link, Setting, cost
from splitlearn.pipeline.formulas import blocking_s, overlapped_s
from splitlearn.pipeline.simulate import simulate
from splitlearn.pipeline.speeds import Speeds

__all__ = [
    "Closed",
    "Leakage",
    "Plan",
    "Wanted",
    "closed_forms",
    "interleaved",
    "late_messages",
    "leakage",
    "one",
    "plan",
    "settings",
]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a plan has to keep; None asks for nothing. error: largest relative error of a codec."""

    step_s: float | None = None
    step_bytes: int | None = None
    error: float | None = None


@dataclass(frozen=True)
class Leakage:
    """A coarse guess at what a compute party that owns the public model could read; no measurement."""

    text: str
    labels: str


@dataclass(frozen=True)
class Plan:
    """A setting with its figures. run: the simulation."""

    setting: Setting
    costed: Costed
    run: Run

    @property
    def step_s(self) -> float:
        return self.run.step_s

    @property
    def step_bytes(self) -> int:
        return self.costed.up + self.costed.down


@dataclass(frozen=True)
class Closed:
    """The closed forms of a chain taken for equal stages (bottom, each compute party, top), each alone.

    alone_s: transfers cost nothing. blocking_s: sends block. overlapped_s: they do not. They know
    nothing of a worker that is two stages, of windows, or of unlike stages.
    """

    alone_s: float
    blocking_s: float
    overlapped_s: float


# Steps simulated for a figure: the first finds everybody idle, and settlements come every few.
_STEPS = 6
# What interleaved steps have to save, of a step's time, to be worth a word.
_WORTH = 0.05
# The most examples a micro-batch need not have: a smaller one wastes a layer's fixed cost.
_MOST_PIECES = 64
_WINDOWS = (2, 4, 8, 16)


def settings(
    given: Setting,
    *,
    layers: int,
    codecs: Sequence[tuple[str, str, str, str]],
    move_cuts: bool = True,
) -> Iterator[Setting]:
    """What may stand instead of `given`: cuts that show the peer no earlier state and no gradient
    nearer to the labels, other numbers of micro-batches, windows and codecs. `given` is one of them.

    In a chain the cuts between compute parties stay: moved either way one of the two would see more.
    What goes between them is written as outputs and gradients are, where that needs no basis.
    """
    yield given
    pieces = sorted({2**k for k in range(7) if 2**k <= min(given.batch, _MOST_PIECES)})
    pieces = sorted({*pieces, given.micro_batches})
    windows = sorted({*_WINDOWS, given.in_flight})
    cuts = [(given.first, given.last)]
    if move_cuts:
        lowest, highest = given.starts[:1] or (layers,), given.starts[-1:] or (0,)
        cuts = [
            (first, last)
            for first in range(given.first, lowest[0])
            for last in range(max(first, *highest) + 1, given.last + 1)
        ]
    for (first, last), m, chosen in product(cuts, pieces, dict.fromkeys([given.codecs, *codecs])):
        # A window of all micro-batches does what any larger one does.
        enough = [w for w in windows if w >= m]
        for w in [w for w in windows if w < m] + enough[:1]:
            other = replace(
                given,
                first=first,
                last=last,
                micro_batches=m,
                in_flight=w,
                codecs=chosen,
                inner=_inner(given, chosen),
            )
            if other != given:
                yield other


def _inner(given: Setting, codecs: tuple[str, str, str, str]) -> tuple[str, str]:
    """What goes between compute parties has no basis."""
    if not given.starts or codecs == given.codecs or needs_basis(codecs[1]):
        return given.inner
    return codecs[1], codecs[2]


def plan(
    candidates: Iterator[Setting], *, speeds: Speeds, link: Link, wanted: Wanted
) -> tuple[Plan | None, int]:
    """The fastest setting that keeps what is wanted, and how many were simulated.

    With a wanted step time the one with the smallest error and then the fewest bytes that meets it.
    None if there is none.
    """
    costed = [(setting, cost(setting, speeds=speeds, link=link)) for setting in candidates]
    kept = [pair for pair in costed if _kept(pair[1], wanted)]
    if wanted.step_s is None:
        kept.sort(key=lambda pair: (pair[1].limit_s, pair[1].up + pair[1].down))
    else:
        kept.sort(key=lambda pair: (pair[1].error, pair[1].up + pair[1].down, pair[1].limit_s))
    best: Plan | None = None
    simulated = 0
    for setting, figures in kept:
        if wanted.step_s is None and best is not None and figures.limit_s >= best.step_s:
            break
        if wanted.step_s is not None and figures.limit_s > wanted.step_s:
            continue
        found = Plan(setting, figures, _simulated(figures.chain))
        simulated += 1
        if wanted.step_s is not None and found.step_s <= wanted.step_s:
            return found, simulated
        if wanted.step_s is None and (best is None or found.step_s < best.step_s):
            best = found
    return best, simulated


def one(setting: Setting, *, speeds: Speeds, link: Link) -> Plan:
    """The plan of a setting as it is."""
    figures = cost(setting, speeds=speeds, link=link)
    return Plan(setting, figures, _simulated(figures.chain))


def interleaved(found: Plan, *, speeds: Speeds, link: Link) -> Plan | None:
    """The same with a staleness of 1, if its steps are shorter by more than a twentieth; none of chains,
    nor where norms are added up before each update.

    For information: a staleness changes the numbers, so no plan has one that the job has not.
    """
    given = found.setting
    if given.staleness or given.starts or given.clips:
        return None
    other = one(replace(given, staleness=1), speeds=speeds, link=link)
    return other if other.step_s < (1 - _WORTH) * found.step_s else None


def _simulated(chain: Chain) -> Run:
    """Where steps interleave, whole stretches and two at least: each ends with a drain."""
    if not chain.staleness:
        return simulate(chain, steps=_STEPS)
    stretch = max(1, chain.settle_messages // chain.messages())
    return simulate(chain, steps=stretch * max(2, -(-_STEPS // stretch)))


def _kept(figures: Costed, wanted: Wanted) -> bool:
    if wanted.step_bytes is not None and figures.up + figures.down > wanted.step_bytes:
        return False
    return wanted.error is None or figures.error <= wanted.error


def closed_forms(chain: Chain) -> Closed:
    """The three closed forms beside a chain's simulation. A relayed hop is two transfers."""
    m, stages = chain.micro_batches, len(chain.stages) + 2
    forward_s = (
        chain.bottom_s + sum(stage.forward_s for stage in chain.stages) + chain.top_s
    ) / stages
    backward_s = (
        sum(stage.backward_s for stage in chain.stages) + chain.bottom_backward_s
    ) / stages
    up, down = chain.up, chain.down
    seconds = [
        pipe.sending_s(size) + pipe.delay_s
        for pipe, size in (
            (up, chain.activation),
            (down, chain.output),
            (up, chain.gradient),
            (down, chain.input_gradient),
        )
        if size
    ]
    for size in (*chain.hops, *chain.back_hops):
        over = (up, down) if chain.relayed else (chain.between,)
        seconds.append(sum(pipe.sending_s(size) + pipe.delay_s for pipe in over))
    transfer_s = sum(seconds) / len(seconds)
    compute_s = forward_s + backward_s
    return Closed(
        alone_s=(m + stages - 1) * compute_s,
        blocking_s=blocking_s(stages, m, compute_s=compute_s, transfer_s=transfer_s),
        overlapped_s=overlapped_s(
            stages, m, forward_s=forward_s, backward_s=backward_s, transfer_s=transfer_s
        ),
    )


# Of the width: a cut no wider than this keeps only some tokens from being read.
_NARROW_SHARE = 1 / 8


def leakage(setting: Setting, *, width: int) -> Leakage:
    """The class a setting is in, from cut and rank alone."""
    columns = setting.lower or width
    if columns > width * _NARROW_SHARE:
        text = f"open: {columns} of {width} columns travel; take the text for readable"
    else:
        text = f"narrowed: {columns} of {width} columns travel; fewer tokens can be read, not none"
    labels = "no gradient leaves"
    if setting.gradients:
        labels = "gradients leave; labels can be told from them where nothing protects them"
    return Leakage(text=text, labels=labels)


def late_messages(chain: Chain, *, deadline_s: float) -> list[str]:
    """A sentence for each kind of message that cannot meet the deadline, alone on an idle link.

    A party waits so long for one answer: the way there, the peer's work, the way back.
    """
    stages = len(chain.stages)
    forward = [chain.activation, *chain.hops, chain.output]
    backward: list[int | None] = [None] * (stages + 1)
    if chain.gradient is not None:
        backward = [chain.input_gradient, *chain.back_hops, chain.gradient]
    found = []
    for place, stage in enumerate(chain.stages):
        whose = f" of compute party {place + 1}" if stages > 1 else ""
        for what, up, work_s, down in (
            ("an output", forward[place], stage.forward_s, forward[place + 1]),
            ("an input gradient", backward[place + 1], stage.backward_s, backward[place]),
        ):
            if up is None or down is None:
                continue
            takes_s = (
                chain.up.sending_s(up)
                + chain.up.delay_s
                + work_s
                + chain.down.sending_s(down)
                + chain.down.delay_s
            )
            if takes_s > deadline_s:
                found.append(
                    f"{what}{whose} takes {takes_s:.3g} s from its sending on and run.deadline_s is "
                    f"{deadline_s:g}; raise schedule.micro_batches or run.deadline_s, or take a codec "
                    "that sends less"
                )
    return found
