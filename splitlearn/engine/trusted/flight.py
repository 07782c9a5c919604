"""The forward of one micro-batch that pauses at each cut.

The trusted party's model is an ordinary transformers model whose trunk is a RemoteStage, or one for
each party of a chain. Its forward runs in a greenlet: at a remote stage it hands out the hidden state
and stands still until that stage's output is handed in. So several micro-batches can be under way in
one thread, and heads, masks and losses stay the library's.
"""

# B batch, T tokens, S tokens of a memory, D width at the cut (hidden size, or the low-rank cut's rank)

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from splitlearn.split.crossing import Handover
from splitlearn.split.stage import RemoteStage

__all__ = ["Encoded", "Flight", "connect", "keep_memory", "pause_at_cut"]


def pause_at_cut(h_BTD: Tensor) -> Tensor:
    """What a RemoteStage calls: give `h_BTD` to the flight's owner, wait for the stage's output."""
    here = getcurrent()
    if here.parent is None:
        raise RuntimeError("the model was called outside a Flight")
    received: Tensor = here.parent.switch(h_BTD)
    return received


def keep_memory(h_BSD: Tensor) -> Tensor:
    """What a Handover calls: note the encoder's output in the flight; what the decoder is handed instead.

    It is a leaf, so that gradients by it stand still there until all of them have come.
    """
    here = getcurrent()
    if not isinstance(here, _Forward):
        raise RuntimeError("the model was called outside a Flight")
    h_BSD = h_BSD.float()  # gradients by it are summed with what comes over the link
    here.memory = Encoded(h_BSD, h_BSD.detach().requires_grad_(h_BSD.requires_grad))
    return here.memory.entered


def connect(model: nn.Module) -> None:
    """Have the remote stages and the Handover of a local model call the flight that it is in."""
    for module in model.modules():
        if isinstance(module, RemoteStage):
            module.exchange = pause_at_cut
        elif isinstance(module, Handover):
            module.exchange = keep_memory


@dataclass(frozen=True)
class Encoded:
    """An encoder's last hidden states, (B, S, D): as they left it, with their graph, and as a leaf."""

    left: Tensor
    entered: Tensor


class _Forward(greenlet):
    """A forward under way, and the memory that it made."""

    def __init__(self, run: Callable[[], ModelOutput]) -> None:
        super().__init__(run)
        self.memory: Encoded | None = None


class Flight:
    """One forward: `to_cut` runs bottom, `past_cut` what lies between two remote stages, `from_cut` runs
    top, each exactly once for a stage and in that order.

    A forward that will never be handed a stage's output is let go with `abandon`.
    """

    def __init__(self, model: Callable[..., Any], *, inputs: Mapping[str, Tensor]) -> None:
        self._forward = _Forward(lambda: model(**inputs))

    @property
    def landed(self) -> bool:
        """Whether the forward is over: what came last is its result."""
        return bool(self._forward.dead)

    @property
    def memory(self) -> Encoded | None:
        """What a decoder attends to, from where its encoder is done; none of other models."""
        return self._forward.memory

    def to_cut(self) -> Tensor:
        """The bottom's output, with its graph."""
        h_BTD: Tensor = self._forward.switch()
        return h_BTD

    def past_cut(self, h_BTD: Tensor) -> Tensor:
        """What enters the next remote stage, given the output of this one, with its graph."""
        next_BTD: Tensor = self._forward.switch(h_BTD)
        return next_BTD

    def from_cut(self, h_BTD: Tensor) -> ModelOutput:
        """The model's output, given the last remote stage's."""
        output: ModelOutput = self._forward.switch(h_BTD)
        return output

    def abandon(self) -> None:
        """End the forward where it stands."""
        self._forward.throw()
