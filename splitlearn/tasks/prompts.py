"""Texts that a model is to go on with, or to say something of, as ids. Nothing here is ever sent.

B texts, T tokens
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from splitlearn.errors import ManifestError

__all__ = ["encode_prompts", "encode_sources"]


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


def _named(
    texts: Sequence[str], *, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, list[int]]]:
    """What each text is called in an error, and its ids; none for one that is blank."""
    for number, text in enumerate(texts, start=1):
        ids = tokenizer(text)["input_ids"] if text.strip() else []
        yield f"prompt {number} of {len(texts)}", list(ids)
