"""What a model says of the next tokens: the loss of each text and how many it got right.

B rows, T tokens, V vocabulary, N tokens in all, E examples
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from splitlearn.tasks.batches import Batch
from splitlearn.tasks.encode import IGNORED

__all__ = ["next_tokens"]


def next_tokens(logits_BTV: Tensor, batch: Batch) -> dict[str, Tensor]:
    """losses: sum of each example's, in nats, float64 (E); hits: its tokens that were said, (E).

    A row at a time, for the logits are as large as all else together. Where a token says the next one,
    the first token of a text counts for nothing; where a decoder says another text, all of it counts.
    """
    labels_BT = batch.labels["labels"]
    losses_BT = torch.zeros(labels_BT.shape, dtype=torch.float64)
    hits_BT = torch.zeros(labels_BT.shape, dtype=torch.int64)
    later = 0 if batch.target else 1  # token at says token at + later
    for row, labels_T in enumerate(labels_BT):
        at = (labels_T[later:] != IGNORED).nonzero()[:, 0]
        said_NV, truth_N = logits_BTV[row, at].float(), labels_T[at + later].to(logits_BTV.device)
        losses_N = functional.cross_entropy(said_NV, truth_N, reduction="none")
        losses_BT[row, at + later] = losses_N.double().cpu()
        hits_BT[row, at + later] = (said_NV.argmax(dim=1) == truth_N).long().cpu()
    if batch.target:
        return {"losses": losses_BT.sum(1), "hits": hits_BT.sum(1)}
    sums = [
        (losses_BT[row, first : first + length].sum(), hits_BT[row, first : first + length].sum())
        for (row, first), length in zip(_starts(batch), batch.lengths, strict=True)
    ]
    losses, hits = zip(*sums, strict=True)
    return {"losses": torch.stack(losses), "hits": torch.stack(hits)}


def _starts(batch: Batch) -> Iterator[tuple[int, int]]:
    """Row and place of each example's first token."""
    width = batch.inputs["input_ids"].shape[1]
    row, free = -1, 0
    for length in batch.lengths:
        if not batch.joined or length > free:
            row, free = row + 1, width
        yield row, width - free
        free -= length
