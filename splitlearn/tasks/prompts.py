"""Texts that a model is to go on with, or to say something of, as ids. Nothing here is ever sent.

B texts, T tokens
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from splitlearn.errors import ManifestError
from splitlearn.tasks.batches import Batch

__all__ = ["encode_prompts", "encode_sources", "of_equal_length"]


def encode_prompts(
    texts: Sequence[str], *, tokenizer: PreTrainedTokenizerBase, tokens: int, limit: int
) -> list[Tensor]:
    """Each text's ids, (1, T). tokens: how many may be added; limit: positions that the model has.

    One text at a time: texts of different lengths side by side would have padding before them, which
    takes the place of positions. ManifestError for a text that is empty or too long.
    """
    found = []
    for name, whole in _named(texts, tokenizer=tokenizer):
        ended = whole[-1:] == [tokenizer.eos_token_id]  # the model would be told that it is done
        ids = whole[:-1] if ended else whole
        if not ids:
            raise ManifestError(f"{name} has no token; it takes a text")
        if len(ids) + tokens > limit:
            raise ManifestError(
                f"{name} has {len(ids)} tokens, and {tokens} more are asked for; "
                f"the model has {limit} positions"
            )
        found.append(torch.tensor([ids]))
    return found


def encode_sources(
    texts: Sequence[str], *, tokenizer: PreTrainedTokenizerBase, tokens: int, limit: int
) -> list[Tensor]:
    """Each text's ids, (1, T), as an encoder below a decoder reads them, its end included.

    tokens: how many the decoder may say; limit: positions of either. ManifestError for a text that is
    empty or too long, and for more tokens than positions.
    """
    if tokens > limit:
        raise ManifestError(f"{tokens} tokens are asked for; the model has {limit} positions")
    found = []
    for name, ids in _named(texts, tokenizer=tokenizer):
        if not ids:
            raise ManifestError(f"{name} has no token; it takes a text")
        if len(ids) > limit:
            raise ManifestError(f"{name} has {len(ids)} tokens; the model has {limit} positions")
        found.append(torch.tensor([ids]))
    return found


def of_equal_length(
    batches: Sequence[Batch], *, most: int
) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """The texts of padded batches laid anew, (B, T) each of texts of one length and of `most` of them.

    Which text each row is, counted over all batches, comes second.
    """
    found: dict[int, list[tuple[int, Tensor]]] = defaultdict(list)
    number = 0
    for batch in batches:
        for ids_T, length in zip(batch.inputs["input_ids"], batch.lengths, strict=True):
            found[length].append((number, ids_T[:length]))
            number += 1
    pieces = [
        texts[first : first + most]
        for texts in found.values()
        for first in range(0, len(texts), most)
    ]
    ids = [torch.stack([ids_T for _, ids_T in piece]) for piece in pieces]
    return ids, [tuple(text for text, _ in piece) for piece in pieces]


def _named(
    texts: Sequence[str], *, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, list[int]]]:
    """What each text is called in an error, and its ids; none for one that is blank."""
    for number, text in enumerate(texts, start=1):
        ids = tokenizer(text)["input_ids"] if text.strip() else []
        yield f"prompt {number} of {len(texts)}", list(ids)
