"""Examples to micro-batches of padded tensors, in an order that seed and epoch decide alone.

Padding is on the right and as short as the micro-batch allows.

B batch, T tokens
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from splitlearn.tasks.encode import IGNORED, Example

__all__ = ["Batch", "batch", "epoch_order", "micro_batches"]


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    inputs: input_ids and attention_mask, and token_type_ids where the tokenizer has them, (B, T).
    labels: as the model's forward names them: labels (B,) or (B, T), or start_positions and
    end_positions (B,). lengths: real tokens of each example. items: weight in the step's mean loss,
    so that the step's loss is sum(items * loss) / sum(items).
    """

    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]
    lengths: tuple[int, ...]
    items: int


def epoch_order(n: int, *, seed: int, epoch: int) -> tuple[int, ...]:
    """A permutation of range(n), the same on every machine.

    >>> epoch_order(5, seed=0, epoch=0) == epoch_order(5, seed=0, epoch=0)
    True
    """
    order = list(range(n))
    random.Random(f"splitlearn order {seed} {epoch}").shuffle(order)  # noqa: S311 - no secret
    return tuple(order)


def micro_batches(
    examples: Sequence[Example],
    order: Sequence[int],
    *,
    batch_size: int,
    micro_batches: int,
    pad_id: int,
) -> Iterator[list[Batch]]:
    """One list an optimiser step: its examples in order, in pieces as equal as they can be.

    The last step of an order takes what is left, and no piece is empty, so its list may be shorter.
    """
    for first in range(0, len(order), batch_size):
        step = [examples[place] for place in order[first : first + batch_size]]
        pieces = min(micro_batches, len(step))
        ends = [len(step) * piece // pieces for piece in range(pieces + 1)]
        yield [batch(step[start:end], pad_id=pad_id) for start, end in pairwise(ends)]


def batch(examples: Sequence[Example], *, pad_id: int) -> Batch:
    """The examples side by side, padded to the longest."""
    lengths = tuple(len(example.input_ids) for example in examples)
    width = max(lengths)
    mask_BT = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    inputs = {
        "input_ids": _padded([example.input_ids for example in examples], width, pad_id),
        "attention_mask": mask_BT.to(torch.int64),
    }
    types = [example.token_type_ids for example in examples if example.token_type_ids is not None]
    if types:
        inputs["token_type_ids"] = _padded(types, width, 0)
    labels = {}
    for name in examples[0].targets:
        targets = [example.targets[name] for example in examples]
        rows = [target for target in targets if isinstance(target, tuple)]
        labels[name] = _padded(rows, width, IGNORED) if rows else torch.tensor(targets)
    return Batch(
        inputs=inputs,
        labels=labels,
        lengths=lengths,
        items=sum(example.items for example in examples),
    )


def _padded(rows: Sequence[tuple[int, ...]], width: int, filler: int) -> Tensor:
    return torch.tensor([(*row, *(filler,) * (width - len(row))) for row in rows])
