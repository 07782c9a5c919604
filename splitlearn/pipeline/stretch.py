"""In which order a trusted party works where steps interleave: schedule.staleness above 0.

Pure, as `schedule` is: counts in, turns out, whatever the link does. A stretch is a row of steps that
interleave; between two stretches everything is drained, nothing is under way and the parties may save,
settle or evaluate. Where a stretch ends follows from the counts alone, so that a run resumed at a
checkpoint has the stretches that it had before.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from splitlearn.pipeline.schedule import Action, Op

__all__ = ["Turn", "interleaved", "until_drained"]


@dataclass(frozen=True)
class Turn:
    """One piece of work in a stretch. step: counted from the stretch's first one.

    action: what to do with a micro-batch; None: the step's gradients are whole, apply them.
    """

    step: int
    action: Action | None


def until_drained(
    counts: Iterable[int], *, first: int, every: int, kinds: int, most: int
) -> Iterator[int]:
    """Of `counts`, the micro-batches of the steps from number `first` on, those of the next stretch.

    It ends where a checkpoint is due, every `every` steps, and before a step with which it would have
    more than `most` messages, of which a micro-batch has `kinds`; one step it always has.

    >>> list(until_drained([2, 2, 2, 2], first=0, every=10, kinds=4, most=24))
    [2, 2, 2]
    >>> list(until_drained([2, 2, 2, 2], first=3, every=5, kinds=4, most=24))
    [2, 2]
    """
    messages = 0
    for step, count in enumerate(counts, first):
        messages += kinds * count
        if step > first and messages > most:
            return
        yield count
        if (step + 1) % every == 0:
            return


def interleaved(
    counts: Iterable[int], *, staleness: int, in_flight: int, backward: bool, order: str
) -> Iterator[Turn]:
    """A stretch of steps with these numbers of micro-batches, `staleness` steps more than one at once.

    A count is taken when its step may begin: after the update of `staleness` + 1 steps before it. Up to
    `in_flight` activations are under way, as within a step; backward: whether gradients come back for
    the bottom. Order "1f1b" takes answers in the order in which the peer gives them, "fill-drain"
    takes outputs first; no number depends on it.

    >>> [f"{t.action.op.value}{t.step}" if t.action else f"update{t.step}"
    ...  for t in interleaved([1, 1, 1], staleness=1, in_flight=4, backward=False, order="1f1b")]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['bottom0', 'bottom1', 'top0', 'update0', 'bottom2', 'top1', 'update1', 'top2', 'update2']
    """
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; expected 1 or more")
    sizes, feed = list[int](), iter(counts)
    # What the peer has to answer: when it was sent, step, micro-batch.
    outputs, gradients = deque[tuple[int, int, int]](), deque[tuple[int, int, int]]()
    now = sent = size = done = updated = 0
    while True:
        now += 1
        room = len(outputs) < in_flight
        if room and sent == size and len(sizes) - updated <= staleness:
            following = next(feed, None)
            if following is not None:
                sizes.append(_several(following))
                sent, size = 0, following
        if room and sent < size:
            step = len(sizes) - 1
            outputs.append((now, step, sent))
            yield Turn(step, Action(Op.BOTTOM, sent))
            sent += 1
            continue
        late = order == "fill-drain" or not gradients
        if outputs and (late or outputs[0] < gradients[0]):
            _, step, i = outputs.popleft()
            yield Turn(step, Action(Op.TOP, i))
            if backward:
                gradients.append((now, step, i))
                continue
        elif gradients:
            _, step, i = gradients.popleft()
            yield Turn(step, Action(Op.BOTTOM_BACKWARD, i))
        else:
            return
        done += 1
        if done == sizes[updated]:
            yield Turn(updated, None)
            done, updated = 0, updated + 1


def _several(count: int) -> int:
    if count < 1:
        raise ValueError(f"a step has {count} micro-batches; expected 1 or more")
    return count
