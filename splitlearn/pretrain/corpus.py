"""One language's text as examples of ids: batch after batch, from any number on, without an index.

Passages are numbered (`text.py`). Example e of a run begins at the passage that a seeded shuffle puts
in place e, and takes the passages after it until `width` ids are full: a pure function of seed and e.
So each pass over the text begins once at each passage, and reads each several times, at other places
of an example. A share of the passages is held out by a hash of its words, not by its number, so that
a passage that comes twice never stands on both sides.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from splitlearn.errors import ManifestError
from splitlearn.pretrain.order import seed_of, shuffled
from splitlearn.pretrain.text import Passages
from splitlearn.pretrain.vocabulary import Vocabulary

__all__ = ["Corpus", "Example"]

# One example: [CLS], then passages that end in [SEP] each. (n,) int32, n at most the corpus's width.
Example = NDArray[np.int32]


class Corpus:
    """Batches of examples for training, and others of what is held out.

    width: ids an example has at most, batch: examples, held_out: share of the passages in [0, 0.5].
    With translations (a text and its pair) an example is [CLS] text [SEP] translation [SEP] instead,
    each side cut to its half where both are long.
    """

    def __init__(
        self,
        passages: Passages,
        *,
        vocabulary: Vocabulary,
        width: int,
        batch: int,
        seed: int,
        held_out: float = 0.05,
    ) -> None:
        if width < 8 or batch < 1 or not 0 <= held_out <= 0.5:
            raise ManifestError(
                f"examples of {width} ids, {batch} a batch, {held_out} of them held out; expected at "
                "least 8 ids, 1 example, and 0 to 0.5"
            )
        self.passages, self.vocabulary = passages, vocabulary
        self.width, self.size = width, batch
        self._seed, self._threshold = seed, int(held_out * 2**64)
        self._held: list[list[Example]] = []
        self._walk = self._held_batches()

    def batch(self, index: int) -> list[Example]:
        """Training batch `index`, 0 or more. ManifestError where everything is empty or held out."""
        first = index * self.size
        return [self._example(number) for number in range(first, first + self.size)]

    def held_out(self, number: int) -> list[Example]:
        """Held-out batch `number`; after the last comes the first. Each different passage stands once.

        Found by walking the text in shuffled order, and remembered. ManifestError if nothing is held out.
        """
        while len(self._held) <= number:
            found = next(self._walk, None)
            if found is None:
                break
            self._held.append(found)
        if not self._held:
            raise ManifestError(
                f"text {self.passages.name} has no held-out passage; hold out a larger share, or give "
                "more text"
            )
        return self._held[number % len(self._held)]

    def tokens(self) -> int:
        """About how many ids the text has, from a sample of at most 1,000 passages."""
        count = len(self.passages)
        sample = [
            shuffled(n, count=count, seed=seed_of("size", self._seed))
            for n in range(min(count, _SAMPLE))
        ]
        ids = sum(len(self._encode(self.passages[number], example=number)) for number in sample)
        return round(ids * count / len(sample))

    def _example(self, number: int) -> Example:
        count = len(self.passages)
        turn, place = divmod(number, count)
        start = shuffled(place, count=count, seed=seed_of("pass", self._seed, turn))
        ids: list[int] = []
        for step in range(count):
            passage = self.passages[(start + step) % count]
            if not self._is_held_out(passage):
                ids += self._encode(passage, example=number)
            if ids and (len(ids) >= self.width - 1 or len(passage) > 1):
                break
        if not ids:
            raise ManifestError(
                f"text {self.passages.name} has nothing to train on: all of it is empty or held out"
            )
        return self._closed(ids)

    def _held_batches(self) -> Iterator[list[Example]]:
        """Batches of what is held out, passages in shuffled order, packed one after another."""
        count, seen = len(self.passages), set[bytes]()
        batch: list[Example] = []
        ids: list[int] = []
        for place in range(count):
            number = shuffled(place, count=count, seed=seed_of("held out", self._seed))
            passage = self.passages[number]
            key = _digest(passage)
            if not self._is_held_out(passage) or key in seen:
                continue
            seen.add(key)
            ids += self._encode(passage, example=number)
            if ids and (len(ids) >= self.width - 1 or len(passage) > 1):
                batch.append(self._closed(ids))
                ids = []
            if len(batch) == self.size:
                yield batch
                batch = []
        if ids:
            batch.append(self._closed(ids))
        if batch:
            yield batch

    def _is_held_out(self, passage: tuple[str, ...]) -> bool:
        # No seed in it: whatever a run is seeded with, the same passages never train.
        return int.from_bytes(_digest(passage)[:8], "big") < self._threshold

    def _encode(self, passage: tuple[str, ...], *, example: int) -> list[int]:
        """The passage's ids and [SEP]; nothing where it is empty, or one side of a pair is."""
        sides = []
        for side in passage:
            text = _window(side, limit=self.width * _CHARACTERS, seed=seed_of(self._seed, example))
            ids = self.vocabulary.encode(text)
            if not ids:
                return []
            sides.append(ids)
        if len(sides) > 1:
            sides = _fitted(sides, room=self.width - 1 - len(sides))
        return [each for ids in sides for each in (*ids, self.vocabulary.sep)]

    def _closed(self, ids: list[int]) -> Example:
        """[CLS] before, [SEP] at the end, `width` ids at most."""
        inner = ids[: self.width - 1]
        inner[-1] = self.vocabulary.sep
        return np.array([self.vocabulary.cls, *inner], dtype=np.int32)


_SAMPLE = 1_000
# Characters read for an id of an example, at most: few vocabularies have longer pieces on average, and
# a passage may be a whole book.
_CHARACTERS = 16


def _digest(passage: tuple[str, ...]) -> bytes:
    """Of the words alone: spaces don't make another passage."""
    plain = "\0".join(" ".join(side.split()) for side in passage)
    return hashlib.sha256(b"held out\0" + plain.encode("utf-8", "surrogatepass")).digest()


def _window(text: str, *, limit: int, seed: int) -> str:
    """The text, or a seeded window of a longer one, from the beginning of a word where there is one."""
    if len(text) <= limit:
        return text
    start = seed % (len(text) - limit + 1)
    window = text[start : start + limit]
    return window if not start else window[window.find(" ") + 1 :]


def _fitted(sides: list[list[int]], *, room: int) -> list[list[int]]:
    """Two sides cut to `room` ids together, the longer one first."""
    first, second = map(len, sides)
    if first + second > room:
        half = room // 2
        first = min(first, max(half, room - second))
        second = min(second, room - first)
    return [sides[0][:first], sides[1][:second]]
