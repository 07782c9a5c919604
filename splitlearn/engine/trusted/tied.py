"""Gradients of weights that the bottom and the top share, as a head that is tied to the embeddings.

The unsplit model's backward sums both shares of a micro-batch before it adds them to those of the
others. In a split run the top's share is there long before the bottom's, and other micro-batches'
come between: so it is held back until the bottom's has joined it, and the sums have the same order.
Where an encoder and its decoder are both remote, the decoder's embeddings lie between two parties and
have a share of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

__all__ = ["Tied"]


class Tied:
    """The shared weights of a local model that train; without any, no method does anything."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # Of each micro-batch under way: the top's share, for each of the weights.
        self._held: dict[int, list[Tensor | None]] = {}

    @contextmanager
    def top(self, micro_batch: int) -> Iterator[None]:
        """Around the backward of a micro-batch's top: its share is held back."""
        self._held.pop(micro_batch, None)  # of a step that was broken off
        with self.between(micro_batch):
            yield

    @contextmanager
    def between(self, micro_batch: int) -> Iterator[None]:
        """Around the backward of a piece between two parties: its share joins the one that is held back."""
        weights = self._weights()
        before = [weight.grad for weight in weights]
        held = self._held.get(micro_batch) or [None] * len(weights)
        for weight, share in zip(weights, held, strict=True):
            weight.grad = share
        yield
        self._held[micro_batch] = [weight.grad for weight in weights]
        for weight, grad in zip(weights, before, strict=True):
            weight.grad = grad

    @contextmanager
    def bottom(self, micro_batch: int) -> Iterator[None]:
        """Around the backward of its bottom: both shares are summed, then added to what was there."""
        weights = self._weights()
        before = [weight.grad for weight in weights]
        for weight, share in zip(weights, self._held.pop(micro_batch), strict=True):
            weight.grad = share
        yield
        for weight, grad in zip(weights, before, strict=True):
            if grad is not None:
                weight.grad = grad if weight.grad is None else grad.add_(weight.grad)

    def _weights(self) -> list[nn.Parameter]:
        """Asked anew each time: what trains may change after the engine was made."""
        seen: set[int] = set()
        shared: dict[int, nn.Parameter] = {}
        for _, weight in self._model.named_parameters(remove_duplicate=False):
            if id(weight) in seen and weight.requires_grad:
                shared[id(weight)] = weight
            seen.add(id(weight))
        return list(shared.values())
