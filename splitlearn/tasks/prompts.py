"""Texts that a model is to go on with, as ids. Nothing here is ever sent.

B texts, T tokens
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from splitlearn.errors import ManifestError

__all__ = ["encode_prompts"]


def encode_prompts(
    texts: Sequence[str], *, tokenizer: PreTrainedTokenizerBase, tokens: int, limit: int
) -> list[Tensor]:
    """Each text's ids, (1, T). tokens: how many may be added; limit: positions that the model has.

    One text at a time: texts of different lengths side by side would have padding before them, which
    takes the place of positions. ManifestError for a text that is empty or too long.
    """
    found = []
    for number, text in enumerate(texts, start=1):
        ids = tokenizer(text)["input_ids"] if text.strip() else []
        if ids and ids[-1] == tokenizer.eos_token_id:  # else the model is told that it is done
            ids = ids[:-1]
        if not ids:
            raise ManifestError(f"prompt {number} of {len(texts)} has no token; it takes a text")
        if len(ids) + tokens > limit:
            raise ManifestError(
                f"prompt {number} of {len(texts)} has {len(ids)} tokens, and {tokens} more are asked for; "
                f"the model has {limit} positions"
            )
        found.append(torch.tensor([ids]))
    return found
