"""What a party is willing to count of its text, for a vocabulary that all share.

A counts file holds pieces of at most 16 characters that stand often enough in the party's own text,
and how often. It is meant to be handed on, so a rare word never enters it: only such parts of it as
are themselves frequent. Never sends it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from splitlearn.errors import ManifestError
from splitlearn.pretrain.words import words

__all__ = ["LIMIT_BYTES", "MAX_PIECE", "Counts", "count", "load_counts", "merge", "save_counts"]

# Characters of a piece, the mark of a word's beginning included. German's long compounds are made of
# shorter ones; addresses and keys are longer than this.
MAX_PIECE = 16
# A counts file of two million pieces has about 30 MB.
LIMIT_BYTES = 64 * 2**20

_Piece = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PIECE)]
_Times = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A party's counts. minimum: what stands less often is not in them."""

    format: Literal["splitlearn-counts-1"]
    minimum: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    pieces: dict[_Piece, _Times]

    @property
    def total(self) -> int:
        """How many pieces were counted, repetitions included."""
        return sum(self.pieces.values())


def count(texts: Iterable[str], *, minimum: int) -> Counts:
    """Pieces that stand at least `minimum` times in these texts.

    A word that is rarer than that is counted by its parts of 4, 2 and 1 characters instead, each as
    often as it stands in such words and only if that is `minimum` times too. Writing without spaces
    (Chinese, Japanese, Thai and others) is counted by its parts from the beginning. Holds about two
    million pieces in memory; of a text with more, what is rarest so far is broken up or forgotten.

    >>> count(["the cat", "the dog", "the owl"], minimum=3).pieces
    {'▁': 3, '▁the': 3}
    """
    whole: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for text in texts:
        for word in words(text):
            if len(word) > MAX_PIECE or (len(word) > _PARTS[0] + 1 and _UNSPACED.search(word)):
                _add_parts(parts, word, times=1)
            else:
                whole[word] += 1
        if len(whole) + len(parts) > _MOST_HELD:
            _break_up(whole, into=parts, minimum=minimum)
            parts = Counter({part: times for part, times in parts.items() if times > 1})
    _break_up(whole, into=parts, minimum=minimum)
    found = whole + parts
    often = {piece: times for piece, times in found.items() if times >= minimum}
    ordered = dict(sorted(often.items(), key=lambda item: (-item[1], item[0])))
    return Counts(format="splitlearn-counts-1", minimum=minimum, pieces=ordered)


def save_counts(counts: Counts, path: Path) -> None:
    """Write a counts file that a person can read. ManifestError where the place is not writable."""
    text = msgspec.json.format(msgspec.json.encode(counts), indent=1)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be written ({error.strerror}); choose another place"
        ) from None


def load_counts(path: Path) -> Counts:
    """What `count` found, read strictly. ManifestError for anything else."""
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise ManifestError(
                f"{path} has more than {LIMIT_BYTES:,} bytes, which no counts file has; count with "
                "a higher --min-count"
            )
        return msgspec.json.decode(path.read_bytes(), type=Counts)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The library's sentence may quote a piece.
        raise ManifestError(
            f"{path} is no counts file; make one with splitlearn vocab count"
        ) from None


def merge(
    parties: Sequence[Counts], *, alpha: float = 0.5, total: int = 1_500_000
) -> dict[str, int]:
    """All parties' pieces, each party's share of `total` proportional to its own total ** alpha.

    alpha 1 leaves the sizes as they are, 0 gives every party the same weight. Every piece counts at
    least once. ManifestError where nothing was counted.
    """
    weights = [counts.total**alpha if counts.pieces else 0.0 for counts in parties]
    if not any(weights):
        raise ManifestError("no counts file has a piece; count with a lower --min-count")
    merged: dict[str, float] = {}
    for counts, weight in zip(parties, weights, strict=True):
        factor = total * weight / sum(weights) / max(counts.total, 1)
        for piece, times in counts.pieces.items():
            merged[piece] = merged.get(piece, 0.0) + times * factor
    return {piece: max(1, round(times)) for piece, times in sorted(merged.items())}


# Characters of the parts of a rare word.
_PARTS = (4, 2, 1)
_MOST_HELD = 2_000_000
# Han, kana, Thai, Lao, Tibetan, Myanmar and Khmer: words there are not set apart by spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]"
)


def _add_parts(parts: Counter[str], word: str, *, times: int) -> None:
    """Every part of the word, from each of its characters on: as often as it stands there, not more."""
    for size in _PARTS:
        for start in range(len(word) - size + 1):
            parts[word[start : start + size]] += times


def _break_up(whole: Counter[str], *, into: Counter[str], minimum: int) -> None:
    """Leave the frequent words, and count the parts of the others."""
    for word, times in list(whole.items()):
        if times < minimum:
            del whole[word]
            _add_parts(into, word, times=times)
