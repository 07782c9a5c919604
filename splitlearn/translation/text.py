"""One party's sentences as ids, and batches of them. It has one side of each pair and never the other."""

# B examples, T tokens of the padded width, V words

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from splitlearn.errors import ManifestError

__all__ = ["Padded", "Sentences", "Special", "load_tokenizer", "pad", "written"]


@dataclass(frozen=True)
class Padded:
    """ids_BT: padded on the right. lengths: real ids of each, first and last token included."""

    ids_BT: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Special:
    """Ids of a tokenizer: what stands first and last, what fills, what hides a word."""

    first: int
    last: int
    pad: int
    mask: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Special":
        """Of a tokenizer that `load_tokenizer` gave."""
        roles = ("cls", "sep", "pad", "mask")
        return cls(*(int(getattr(tokenizer, f"{role}_token_id")) for role in roles))


class Sentences:
    """Sentences by sample id, each with the tokenizer's first and last token around it."""

    def __init__(
        self,
        texts: Mapping[str, str],
        *,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
    ) -> None:
        """max_length: ids of the longest that takes part, those around it included; others are left out."""
        self.tokenizer = tokenizer
        # One more than may be: what is cut to that is too long, and the library need not warn of it.
        cut = {"truncation": True, "max_length": max_length + 1}
        ids = tokenizer(list(texts.values()), **cut)["input_ids"] if texts else []
        self._ids: dict[str, list[int]] = {
            sample: found
            for sample, found in zip(texts, ids, strict=True)
            if len(found) <= max_length
        }
        self._texts = {sample: texts[sample] for sample in self._ids}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def samples(self) -> tuple[str, ...]:
        """Their ids, in the order in which they came."""
        return tuple(self._ids)

    def length(self, sample: str) -> int:
        """Ids of one."""
        return len(self._ids[sample])

    def text(self, sample: str) -> str:
        return self._texts[sample]

    def batch(self, samples: Sequence[str]) -> Padded:
        """These, in this order."""
        return pad([self._ids[sample] for sample in samples], fill=Special.of(self.tokenizer).pad)

    def words(self) -> Tensor:
        """The ids that occur, ascending, without the special ones; (V,)."""
        special = set(self.tokenizer.all_special_ids)
        found = {word for ids in self._ids.values() for word in ids} - special
        return torch.tensor(sorted(found), dtype=torch.long)


def pad(examples: Sequence[Sequence[int]], *, fill: int) -> Padded:
    """
    >>> pad([[1], [2, 3]], fill=0).ids_BT.tolist()
    [[1, 0], [2, 3]]
    """
    width = max(map(len, examples))
    ids_BT = torch.full((len(examples), width), fill, dtype=torch.long)
    for row, ids in enumerate(examples):
        ids_BT[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
    return Padded(ids_BT, tuple(map(len, examples)))


def written(tokenizer: PreTrainedTokenizerBase, words: Sequence[int]) -> str:
    """Ids as a sentence."""
    return str(tokenizer.decode(list(words), skip_special_tokens=True))


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """From a folder or the hub. ManifestError where there is none, or one without mask, pad, first, last."""
    local = Path(path).is_dir()
    try:
        # Without the file the library would make up a tokenizer that knows no word.
        cached_file(path, "tokenizer.json", local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ManifestError(f"the tokenizer of model {path} cannot be loaded: {reason}") from None
    for role in ("mask", "pad", "cls", "sep"):
        if getattr(tokenizer, f"{role}_token_id", None) is None:
            raise ManifestError(
                f"the tokenizer of model {path} has no {role} token; take a model of BERT's kind"
            )
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer
