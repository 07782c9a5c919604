"""The same U-shape under torch.distributed.pipelining, to compare with: gloo, plaintext, two ranks.

Rank 0 holds the first and the last stage and so text and labels, rank 1 the layers between. Public
schedules with that placement are the V-shaped ones, which want two stages on each rank: the trunk is
cut once more. `UShaped` is our own order of work (`splitlearn.pipeline`) written as a torch schedule
of three stages, without the extra cut. torch has no public way to hand an order in, and its public
schedules of other placements want as many stages on each rank, so it subclasses a private class.
"""

# B batch, T tokens, D width

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleDualPipeV,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from transformers import PreTrainedModel

from splitlearn.engine.trusted.run import IN_FLIGHT
from splitlearn.pipeline import ORDERS, Op
from splitlearn.split import Cut

__all__ = ["PUBLIC", "SCHEDULES", "Pipelined"]

PUBLIC = {"zbv": ScheduleZBVZeroBubble, "dualpipe-v": ScheduleDualPipeV}


class Bottom(nn.Module):
    """Token ids to hidden states."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embeddings = model.bert.embeddings
        self.layers = nn.ModuleList(layers)

    def forward(self, ids_BT: Tensor) -> Tensor:
        h_BTD: Tensor = self.embeddings(input_ids=ids_BT)
        return through(self.layers, h_BTD)


class Between(nn.Module):
    """Hidden states to hidden states."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, h_BTD: Tensor) -> Tensor:
        return through(self.layers, h_BTD)


class Top(nn.Module):
    """Hidden states to logits."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.pooler, self.dropout = model.bert.pooler, model.dropout
        self.classifier = model.classifier

    def forward(self, h_BTD: Tensor) -> Tensor:
        pooled_BD = self.pooler(through(self.layers, h_BTD))
        logits: Tensor = self.classifier(self.dropout(pooled_BD))
        return logits


def through(layers: nn.ModuleList, h_BTD: Tensor) -> Tensor:
    """Examples of full length have no mask."""
    for layer in layers:
        h_BTD = layer(h_BTD, None)
    return h_BTD


class UShaped(_PipelineScheduleRuntime):
    """One forward, one backward over three stages on two ranks, as a trusted party orders it."""

    def __init__(
        self, stages: list[PipelineStage], n_microbatches: int, loss_fn: Callable[..., Tensor]
    ) -> None:
        super().__init__(stages, n_microbatches, loss_fn=loss_fn)
        outer: list[str] = []
        inner: list[str] = []
        order = ORDERS["1f1b"](n_microbatches, in_flight=IN_FLIGHT, backward=True)
        for action in order:
            i = action.micro_batch
            if action.op is Op.BOTTOM:
                outer.append(f"0F{i}")
                inner.append(f"1F{i}")
            elif action.op is Op.TOP:
                outer += [f"2F{i}", f"2B{i}"]
                inner.append(f"1B{i}")
            else:
                outer.append(f"0B{i}")
        self.pipeline_order = {
            rank: [_Action.from_str(text) for text in texts]
            for rank, texts in enumerate((outer, inner))
        }
        self._prepare_schedule_with_comms(self.pipeline_order)


SCHEDULES = {**PUBLIC, "u-1f1b": UShaped}


class Pipelined:
    """One rank's stages of `model` under one schedule. The model is taken apart, not copied."""

    def __init__(
        self, model: PreTrainedModel, *, cut: Cut, schedule: str, micro_batches: int
    ) -> None:
        rank = dist.get_rank()
        layers = list(model.bert.encoder.layer)
        middle = [layers[cut.first : cut.last]]
        if schedule in PUBLIC:
            middle = [middle[0][:1], middle[0][1:]]
        modules: list[nn.Module] = [Bottom(model, layers[: cut.first])]
        modules += [Between(some) for some in middle]
        modules.append(Top(model, layers[cut.last :]))
        outer = {0, len(modules) - 1}
        mine = [i for i in range(len(modules)) if (i in outer) == (rank == 0)]
        stages = [
            PipelineStage(modules[i].train(), i, len(modules), torch.device("cpu")) for i in mine
        ]
        self.parameters = [p for i in mine for p in modules[i].parameters()]
        self._first = rank == 0
        self._schedule = SCHEDULES[schedule](
            stages, micro_batches, loss_fn=nn.functional.cross_entropy
        )

    def backward(self, ids_BT: Tensor, labels_B: Tensor) -> float | None:
        """Gradients of one step; its loss at rank 0. The other rank looks at neither argument."""
        if not self._first:
            self._schedule.step()
            return None
        losses: list[Tensor] = []
        self._schedule.step(ids_BT, target=labels_B, losses=losses)
        return torch.stack([loss.detach() for loss in losses]).mean().item()
