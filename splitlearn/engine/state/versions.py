"""A segment's weights, by the number of steps they are of, so that a step may begin before others end.

A gradient is of one version of the weights: a micro-batch's forward, its backward and every segment
that it passes use the same one, that after max(step - staleness, last drain) steps. Both parties
reckon so, and need not tell one another. autograd keeps a leaf, not its values, so an update in place
would spoil graphs made before it: each step has leaves of its own, over memory that is left alone, and
collects its gradients there until they are whole and the real parameters are stepped with them.

Up to staleness + 1 versions of what trains live at once, the newest being the real parameters, and
gradients of as many steps. Without staleness nothing is kept and the module is used as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from splitlearn.engine.state.optimiser import Stepper
from splitlearn.wire.messages import Offer

__all__ = ["Versions", "staleness_of"]


def staleness_of(offer: Offer) -> int:
    """By how many steps weights may be behind.

    In mode "features" what crosses the cuts depends on no trained weight, so interleaved steps go
    with the newest ones: they change no number.
    """
    return offer.schedule.staleness if offer.trains_trunk else 0


class Versions:
    """The versions of one module's trained parameters. step: optimiser steps done so far."""

    def __init__(self, module: nn.Module, *, staleness: int, step: int) -> None:
        self._staleness = staleness
        self._trained = [p for p in module.parameters() if p.requires_grad]
        place_of = {id(p): i for i, p in enumerate(self._trained)}
        # One parameter may stand in several places.
        self._places = [
            (owner, name, place_of[id(p)])
            for owner in module.modules()
            for name, p in owner.named_parameters(recurse=False, remove_duplicate=False)
            if id(p) in place_of
        ]
        self._leaves: dict[int, list[nn.Parameter]] = {}
        self._weights: dict[int, list[Tensor]] = {}
        self._drained_at = step
        self.drained(step)

    @property
    def live(self) -> int:
        """How many versions of the weights are held, the newest included."""
        return len(self._weights)

    def drained(self, step: int) -> None:
        """No step is under way and `step` are done: what comes next begins with these weights."""
        assert not self._leaves, "drained in the middle of a step"
        self._drained_at = step
        self._weights = {step: [p.data for p in self._trained]}

    @contextmanager
    def using(self, step: int) -> Iterator[None]:
        """Inside, the module has the weights that `step` uses, and its graphs end at the step's leaves."""
        if not self._staleness:
            yield
            return
        leaves = self._leaves.get(step)
        if leaves is None:
            held = self._weights[max(step - self._staleness, self._drained_at)]
            leaves = self._leaves[step] = [nn.Parameter(w) for w in held]
        try:
            self._put(leaves)
            yield
        finally:
            self._put(self._trained)

    def update(self, step: int, *, stepper: Stepper) -> None:
        """Step the real parameters by the whole gradients of `step`, the next one in order."""
        if not self._staleness:
            stepper.step()
            return
        for p, leaf in zip(self._trained, self._leaves.pop(step), strict=True):
            p.grad = leaf.grad
            # The version that it held stays where it is; the optimiser works in place.
            p.data = p.data.clone()
        stepper.step()
        now = step + 1
        self._weights[now] = [p.data for p in self._trained]
        oldest = max(now - self._staleness, self._drained_at)
        self._weights = {v: w for v, w in self._weights.items() if v >= oldest}

    def _put(self, parameters: list[nn.Parameter]) -> None:
        for owner, name, i in self._places:
            setattr(owner, name, parameters[i])
