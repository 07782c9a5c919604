"""Examples to micro-batches of padded tensors, in an order that seed and epoch decide alone.

Padding is on the right and as short as the micro-batch allows.

B batch, T tokens
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import torch
from torch import Tensor

from splitlearn.manifest import Job
from splitlearn.tasks.encode import IGNORED, Example

__all__ = ["Batch", "Steps", "batch", "epoch_order", "joined_width", "micro_batches"]


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    inputs: input_ids and attention_mask, and token_type_ids where the tokenizer has them, (B, T).
    labels: as the model's forward names them: labels (B,) or (B, T), or start_positions and
    end_positions (B,). lengths: real tokens of each example. items: weight in the step's mean loss,
    so that the step's loss is sum(items * loss) / sum(items). truth: the true labels, where labels are
    randomised ones; nothing is computed from them. canary: of known examples, whose frames are kept.
    samples: number of each training example, the same in every epoch; empty where there is none.
    next_token: labels are the ids themselves, and each token has to say the next one. target: labels are
    ids of another text, (B, U), which a decoder has to say; it reads them too. joined: several
    examples lie in one row, so that B is less than `lengths` are; position_ids then stand in place of
    an attention_mask.
    """

    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]
    lengths: tuple[int, ...]
    items: int
    truth: dict[str, Tensor] = field(default_factory=dict)
    canary: bool = False
    samples: tuple[int, ...] = ()
    next_token: bool = False
    joined: bool = False
    target: bool = False

    @property
    def seen(self) -> dict[str, Tensor]:
        """What a model is given where it does not train."""
        return {**self.inputs, **self.labels} if self.target else self.inputs


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
    join: int | None = None,
) -> Iterator[list[Batch]]:
    """One list an optimiser step: its examples in order, in pieces as equal as they can be.

    The last step of an order takes what is left, and no piece is empty, so its list may be shorter.
    """
    for first in range(0, len(order), batch_size):
        numbers = tuple(order[first : first + batch_size])
        step = [examples[number] for number in numbers]
        pieces = min(micro_batches, len(step))
        ends = [len(step) * piece // pieces for piece in range(pieces + 1)]
        yield [
            replace(batch(step[start:end], pad_id=pad_id, join=join), samples=numbers[start:end])
            for start, end in pairwise(ends)
        ]


class Steps:
    """The micro-batches of any step of a run, in any order of asking, so that a run can be resumed.

    Epochs follow one another, each in its own order; `total` counts the steps of the whole run.
    `canaries` come round in one further micro-batch of every `canary_every` steps, in their own order.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        job: Job,
        pad_id: int,
        canaries: Sequence[Example] = (),
    ) -> None:
        schedule = job.schedule
        self._examples, self._pad_id = examples, pad_id
        self._seed, self._pieces = job.run.seed, schedule.micro_batches
        self._batch_size, self._join = schedule.batch_size, joined_width(job)
        self._canaries = canaries
        self._epoch, self._order = -1, tuple[int, ...]()
        # As many as an ordinary micro-batch, so that nothing about them stands out.
        self.canary_size = -(-self._batch_size // self._pieces)
        share = job.canary.rate
        self.canary_every = max(
            1, round(self.canary_size * (1 - share) / (share * self._batch_size))
        )
        self.per_epoch = -(-len(examples) // self._batch_size)
        self.total = schedule.steps or (schedule.epochs or 1) * self.per_epoch

    def __call__(self, step: int) -> list[Batch]:
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = epoch_order(len(self._examples), seed=self._seed, epoch=epoch)
            self._epoch = epoch
        first = place * self._batch_size
        made = next(
            micro_batches(
                self._examples,
                self._order[first : first + self._batch_size],
                batch_size=self._batch_size,
                micro_batches=self._pieces,
                pad_id=self._pad_id,
                join=self._join,
            )
        )
        if chosen := self.canaries_of(step):
            examples = [self._canaries[index] for index in chosen]
            canary = batch(examples, pad_id=self._pad_id, join=self._join)
            made.append(replace(canary, canary=True))
        return made

    def canaries_of(self, step: int) -> tuple[int, ...]:
        """Numbers of the canary examples in a step's last micro-batch; none in most steps."""
        turn, rest = divmod(step + 1, self.canary_every)
        if rest or not self._canaries:
            return ()
        first = (turn - 1) * self.canary_size
        return tuple((first + i) % len(self._canaries) for i in range(self.canary_size))


def joined_width(job: Job) -> int | None:
    """Tokens that a row of joined texts has at most; None where each text has a row of its own."""
    return job.data.max_length if job.data.join else None


def batch(examples: Sequence[Example], *, pad_id: int, join: int | None = None) -> Batch:
    """The examples side by side, padded to the longest; of next tokens joined to rows of at most `join`."""
    if join is not None:
        return _joined(examples, pad_id=pad_id, join=join)
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
    truths = [example.truth for example in examples if example.truth is not None]
    return Batch(
        inputs=inputs,
        labels=_targets([example.targets for example in examples]),
        lengths=lengths,
        items=sum(example.items for example in examples),
        truth=_targets(truths) if truths else {},
        next_token=examples[0].next_token,
        target=examples[0].target,
    )


def _joined(examples: Sequence[Example], *, pad_id: int, join: int) -> Batch:
    lengths = tuple(len(example.input_ids) for example in examples)
    rows: list[list[Example]] = []
    for example in examples:
        if not rows or _length(rows[-1]) + len(example.input_ids) > join:
            rows.append([])
        rows[-1].append(example)
    width = max(map(_length, rows))
    places = [
        [*chain.from_iterable(range(len(e.input_ids)) for e in row), *range(width - _length(row))]
        for row in rows
    ]
    ids = [tuple(chain.from_iterable(e.input_ids for e in row)) for row in rows]
    labels = [tuple(chain.from_iterable(map(_row_of, row))) for row in rows]
    return Batch(
        inputs={"input_ids": _padded(ids, width, pad_id), "position_ids": torch.tensor(places)},
        labels={"labels": _padded(labels, width, IGNORED)},
        lengths=lengths,
        items=sum(example.items for example in examples),
        next_token=True,
        joined=True,
    )


def _length(row: Sequence[Example]) -> int:
    return sum(len(example.input_ids) for example in row)


def _row_of(example: Example) -> tuple[int, ...]:
    labels = example.targets["labels"]
    assert isinstance(labels, tuple), "texts are joined where each token has a target"
    return labels


def _targets(
    examples: Sequence[Mapping[str, int | tuple[int, ...]]],
) -> dict[str, Tensor]:
    labels = {}
    for name in examples[0]:
        targets = [example[name] for example in examples]
        rows = [target for target in targets if isinstance(target, tuple)]
        longest = max(map(len, rows), default=0)
        labels[name] = _padded(rows, longest, IGNORED) if rows else torch.tensor(targets)
    return labels


def _padded(rows: Sequence[tuple[int, ...]], width: int, filler: int) -> Tensor:
    return torch.tensor([(*row, *(filler,) * (width - len(row))) for row in rows])
