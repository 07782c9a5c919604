"""In which order a trusted party works through the micro-batches of one step.

Pure: a schedule is a list of actions, made before the step begins, so that two runs with the same
settings do the same sums in the same order however fast the links are. The trusted party is the
first and the last stage (U-shape); of several compute parties in a chain it also passes on what goes
from each to the next. A compute party answers in order of arrival.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ORDERS", "Action", "Op", "fill_drain", "one_forward_one_backward"]


class Op(StrEnum):
    """What to do with a micro-batch."""

    BOTTOM = "bottom"  # forward to the cut, send the activation
    RELAY = "relay"  # await an output, send it on as the next party's activation
    TOP = "top"  # await the last output, forward to the loss; in training send the gradient
    RELAY_BACKWARD = "relay_backward"  # await an input gradient, send it on to the party before
    BOTTOM_BACKWARD = "bottom_backward"  # await the input gradient, backward through the bottom


@dataclass(frozen=True)
class Action:
    """One piece of work. party: of a relay, the compute party after it, counted from 0."""

    op: Op
    micro_batch: int
    party: int = 0


def fill_drain(
    micro_batches: int, *, in_flight: int, backward: bool, parties: int = 1, gradients: bool = False
) -> Iterator[Action]:
    """Fill the chain with up to `in_flight` activations, then one more for each that came back.

    backward: whether gradients come back for the bottom. parties: how many compute parties there are.
    gradients: whether they are passed back along the chain though none comes back for the bottom.
    Gradients are accumulated in micro-batch order, as a single-process loop over the same
    micro-batches does.

    >>> [f"{a.op.value}{a.micro_batch}" for a in fill_drain(3, in_flight=2, backward=False)]
    ['bottom0', 'bottom1', 'top0', 'bottom2', 'top1', 'top2']
    """
    pace = _Pace.of(in_flight, parties=parties)
    return _actions(
        micro_batches,
        pace=pace.after(micro_batches),
        relayed=backward or gradients,
        backward=backward,
    )


def one_forward_one_backward(
    micro_batches: int, *, in_flight: int, backward: bool, parties: int = 1, gradients: bool = False
) -> Iterator[Action]:
    """As `fill_drain`, but a backward is done as soon as it never has to wait for it.

    So no more than 2 * in_flight + parties graphs of the bottom live, however many micro-batches there
    are, and the trusted party computes while it would else wait for outputs. A gradient that leaves
    before an activation does is answered before that activation, whose output is awaited anyway.

    >>> [f"{a.op.value}{a.micro_batch}" for a in one_forward_one_backward(3, in_flight=1, backward=True)]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['bottom0', 'top0', 'bottom1', 'top1', 'bottom2', 'bottom_backward0', 'top2',
     'bottom_backward1', 'bottom_backward2']
    """
    pace = _Pace.of(in_flight, parties=parties)
    return _actions(micro_batches, pace=pace, relayed=backward or gradients, backward=backward)


ORDERS: Mapping[str, Callable[..., Iterator[Action]]] = {
    "fill-drain": fill_drain,
    "1f1b": one_forward_one_backward,
}


@dataclass(frozen=True)
class _Pace:
    """How far apart the stages work. One entry for each compute party, the one after the bottom first.

    ahead: by how many micro-batches what is sent to it runs ahead of the top. behind: by how many its
    input gradient comes after the top.
    """

    ahead: tuple[int, ...]
    behind: tuple[int, ...]

    @classmethod
    def of(cls, in_flight: int, *, parties: int) -> "_Pace":
        """The window shared out evenly, and every backward where its wait is another's anyway.

        A party's input gradient is there once the output of what was sent to it after the gradient is
        awaited: `ahead` further micro-batches on, and one more for each relay on the way.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; expected 1 or more")
        if parties < 1:
            raise ValueError(f"there are {parties} compute parties; expected 1 or more")
        ahead = tuple(in_flight * (parties - party) // parties for party in range(parties))
        # The bottom's activation leaves after a relayed gradient does, a relay's before the top.
        behind = (in_flight + parties - 1, *(ahead[i] + parties - i for i in range(1, parties)))
        return cls(ahead, behind)

    def after(self, micro_batches: int) -> "_Pace":
        """The same, all backwards after the last top."""
        late = micro_batches - self.behind[-1]
        return _Pace(self.ahead, tuple(behind + max(0, late) for behind in self.behind))


def _actions(micro_batches: int, *, pace: _Pace, relayed: bool, backward: bool) -> Iterator[Action]:
    """relayed: whether gradients go back along the chain; backward: and from its end to the bottom."""
    relays = range(1, len(pace.ahead))
    done = [0 for _ in pace.ahead]

    def forward(party: int, until: int) -> Iterator[Action]:
        """What is sent to a party, up to micro-batch `until`."""
        op = Op.RELAY if party else Op.BOTTOM
        while done[party] < min(until, micro_batches):
            yield Action(op, done[party], party)
            done[party] += 1

    yield from forward(0, pace.ahead[0])
    for i in range(micro_batches + max(pace.behind)):
        for party in relays:
            yield from forward(party, i + pace.ahead[party] + 1)
        if i < micro_batches:
            yield Action(Op.TOP, i)
        for party in reversed(relays):
            if relayed and 0 <= i - pace.behind[party] < micro_batches:
                yield Action(Op.RELAY_BACKWARD, i - pace.behind[party], party)
        yield from forward(0, i + pace.ahead[0] + 1)
        if backward and 0 <= i - pace.behind[0] < micro_batches:
            yield Action(Op.BOTTOM_BACKWARD, i - pace.behind[0])
