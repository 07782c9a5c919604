"""The vocabulary that all parties of a pre-training share: a tokenizer.json, held by its digest.

Ids of another vocabulary are noise to the discriminator, so the digest is what parties compare.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from splitlearn.errors import ManifestError
from splitlearn.pretrain.words import MARK, normaliser, splitter
from splitlearn.wire.ids import MAX_VOCABULARY

__all__ = ["LIMIT_BYTES", "MIN_SIZE", "Kind", "Vocabulary", "load_vocabulary", "train_vocabulary"]

Kind = Literal["unigram", "bpe"]

# The largest multilingual tokenizer.json in use, of 256,000 pieces, has 35 MB.
LIMIT_BYTES = 64 * 2**20
# Special tokens, letters and a few words: less is a mistake.
MIN_SIZE = 64


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and the ids that a pre-training has to know.

    size: ids are [0, size). digest: sha256, in hex, of the canonical tokenizer.json, which `text` is.
    special: ids that stand for no text; never masked, and never a replacement.
    """

    tokenizer: Tokenizer = field(repr=False, compare=False)
    text: str = field(repr=False, compare=False)
    size: int
    digest: str
    pad: int
    cls: int
    sep: int
    mask: int
    unk: int
    special: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The text's ids, without [CLS] and [SEP]. "[MASK]" in a text is six characters."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def save(self, path: Path) -> None:
        """Write the canonical file. ManifestError where the place is not writable."""
        try:
            path.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise ManifestError(
                f"{path} cannot be written ({error.strerror}); choose another place"
            ) from None


def load_vocabulary(path: Path, *, digest: str | None = None) -> Vocabulary:
    """A tokenizer.json, or the one in a folder of transformers.

    Raises ManifestError for a file that cannot be read, lacks one of the five special tokens, or has
    another digest than the expected.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.stat().st_size > LIMIT_BYTES:
            raise ManifestError(
                f"{file} has more than {LIMIT_BYTES:,} bytes; give a tokenizer.json"
            )
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(
            f"{file} cannot be read ({error.strerror}); give a tokenizer.json, or a model's folder "
            "that has one"
        ) from None
    except UnicodeDecodeError:
        raise ManifestError(f"{file} is no UTF-8 text; give a tokenizer.json") from None
    vocabulary = _parse(text, name=str(file))
    if digest is not None and vocabulary.digest != digest:
        raise ManifestError(
            f"{file} has digest {vocabulary.digest[:16]}..., and {digest[:16]}... was agreed; take "
            "the vocabulary that the others have"
        )
    return vocabulary


def train_vocabulary(pieces: Mapping[str, int], *, size: int, kind: Kind) -> Vocabulary:
    """A vocabulary of at most `size` ids from counted pieces, as `merge` gives them.

    "bpe" gives the same file for the same pieces; "unigram" (the library's estimation runs over a
    hash map in no fixed order) may differ in its last pieces, so train it once and hand it on.
    ManifestError for a size out of bounds, or no larger than the letters that have to be in it.
    """
    if not MIN_SIZE <= size <= MAX_VOCABULARY:
        raise ManifestError(f"a vocabulary of {size} ids; expected {MIN_SIZE} to {MAX_VOCABULARY}")
    letters = {letter for piece in pieces for letter in piece}
    if len(letters) + len(_NAMES) >= size:
        raise ManifestError(
            f"a vocabulary of {size} ids for {len(letters)} different characters; choose a larger "
            "--size, or count with a higher --min-count"
        )
    names = [name for name, _ in _NAMES.values()]
    unknown = _NAMES["unk"][0]
    tokenizer = Tokenizer(models.BPE(unk_token=unknown) if kind == "bpe" else models.Unigram())
    # The pieces are words already: nothing may divide or change them again.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", behavior="removed")
    trainer: trainers.Trainer
    if kind == "bpe":
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=names, show_progress=False)
    else:
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=names, unk_token=unknown, show_progress=False
        )
    tokenizer.train_from_iterator(
        ("\n".join([piece] * times) for piece, times in pieces.items()), trainer
    )
    tokenizer.normalizer = normaliser()
    tokenizer.pre_tokenizer = splitter()
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
    ends = [("[CLS]", names.index("[CLS]")), ("[SEP]", names.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return _parse(tokenizer.to_str(), name="the trained vocabulary")


# What each special token is called: here, and in vocabularies after sentencepiece and RoBERTa.
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


def _parse(text: str, *, name: str) -> Vocabulary:
    canonical = _canonical(text, name=name)
    try:
        tokenizer = Tokenizer.from_str(canonical)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ManifestError(f"{name} is no tokenizer.json: {reason}") from None
    tokenizer.encode_special_tokens = True
    ids = tokenizer.get_vocab()
    size = max(ids.values(), default=-1) + 1
    if not MIN_SIZE <= size <= MAX_VOCABULARY:
        raise ManifestError(f"{name} has {size} ids; expected {MIN_SIZE} to {MAX_VOCABULARY}")
    special = {}
    for role, names in _NAMES.items():
        found = [ids[each] for each in names if each in ids]
        if not found:
            raise ManifestError(
                f"{name} has no {names[0]} (nor {names[1]}); a masked-LM vocabulary has, so choose "
                "one, or train one with splitlearn vocab train"
            )
        special[role] = found[0]
    if len(set(special.values())) < len(special):
        raise ManifestError(f"{name} uses one id for two special tokens; choose another vocabulary")
    added = tokenizer.get_added_tokens_decoder()
    others = {number for number, token in added.items() if token.special}
    return Vocabulary(
        tokenizer=tokenizer,
        text=canonical,
        size=size,
        digest=hashlib.sha256(canonical.encode()).hexdigest(),
        special=frozenset(others | set(special.values())),
        **special,
    )


def _canonical(text: str, *, name: str) -> str:
    """One spelling for what gives the same ids: keys sorted, no padding or truncation of somebody's."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        raise ManifestError(f"{name} is no tokenizer.json: it is no JSON") from None
    if not isinstance(whole, dict):
        raise ManifestError(f"{name} is no tokenizer.json: it is no JSON object")
    whole |= {"truncation": None, "padding": None}
    return json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"
