"""Scores of predictions against what is true: counting only, on plain names and texts.

Every score is a fraction between 0 and 1, but perplexity, which is from 1 up.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = [
    "accuracy",
    "answer_scores",
    "entities",
    "entity_f1",
    "macro_f1",
    "majority",
    "perplexity",
]


def accuracy(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Share of places where both are the same; 0 where there is none.

    >>> accuracy(["a", "b"], ["a", "c"])
    0.5
    """
    return _ratio(sum(p == g for p, g in zip(predicted, gold, strict=True)), len(gold))


def macro_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Mean over the classes that occur, predicted or gold, of each class's F1."""
    hits = Counter(p for p, g in zip(predicted, gold, strict=True) if p == g)
    said, true = Counter(predicted), Counter(gold)
    classes = said.keys() | true.keys()
    return _ratio(sum(2 * hits[c] / (said[c] + true[c]) for c in classes), len(classes))


def majority(train: Sequence[str], gold: Sequence[str]) -> float:
    """Accuracy of always saying the training data's most frequent class (of equals the first by name)."""
    counts = Counter(train)
    if not counts:
        return 0.0
    most = min(counts, key=lambda name: (-counts[name], name))
    return accuracy([most] * len(gold), gold)


def perplexity(loss: float, tokens: int) -> float:
    """e to the mean loss of a token, in nats; infinite where that is no float any more.

    >>> round(perplexity(20.79, 10), 2)
    8.0
    """
    try:
        return math.exp(loss / tokens)
    except OverflowError:
        return math.inf


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Entities of one sentence as (type, first word, word after the last), read as conlleval does.

    A tag is `O`, or `B-type` / `I-type` (also `E-`, `S-`); tags without such a prefix are types of their
    own, one entity for each run.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC"]))
    [('LOC', 3, 4), ('PER', 0, 2)]
    """
    found = set()
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, name = _split(tag)
        goes_on = name == kind and prefix not in {"B", "S"}
        if kind and not goes_on:
            found.add((kind, start, place))
        if name and not (kind and goes_on):
            start = place
        kind = "" if prefix in {"E", "S"} else name
        if name and prefix in {"E", "S"}:
            found.add((name, start, place + 1))
    return found


def entity_f1(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """F1 over whole entities of all sentences, type and borders right; 1 where neither has any."""
    hits = said = true = 0
    for p_tags, g_tags in zip(predicted, gold, strict=True):
        p_set, g_set = entities(p_tags), entities(g_tags)
        hits, said, true = hits + len(p_set & g_set), said + len(p_set), true + len(g_set)
    return 2 * hits / (said + true) if said + true else 1.0


def answer_scores(predicted: Sequence[str], gold: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Exact match and F1 as SQuAD has them, the best over each question's answers.

    Texts are compared without case, punctuation (any script's) and English articles; scripts without
    spaces are compared character by character, as MLQA does.
    """
    exact = overlap = 0.0
    for said, answers in zip(predicted, gold, strict=True):
        exact += max(_words(said) == _words(answer) for answer in answers)
        overlap += max(_overlap(_words(said), _words(answer)) for answer in answers)
    return _ratio(exact, len(gold)), _ratio(overlap, len(gold))


_ARTICLES = {"a", "an", "the"}
# Chinese, Japanese and Thai are written without spaces between words.
_UNSPACED = ("CJK UNIFIED", "CJK COMPATIBILITY", "HIRAGANA", "KATAKANA", "THAI CHARACTER")


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def _split(tag: str) -> tuple[str, str]:
    prefix, dash, name = tag.partition("-")
    if tag == "O":
        return "O", ""
    return (prefix, name) if dash and prefix in {"B", "I", "E", "S"} else ("I", tag)


def _words(text: str) -> list[str]:
    return [word for word in "".join(_spaced(text.casefold())).split() if word not in _ARTICLES]


def _spaced(text: str) -> Iterable[str]:
    for character in text:
        if unicodedata.category(character).startswith("P"):
            continue
        unspaced = unicodedata.name(character, "").startswith(_UNSPACED)
        yield f" {character} " if unspaced else character


def _overlap(said: Sequence[str], answer: Sequence[str]) -> float:
    if not said or not answer:
        return float(said == answer)
    common = (Counter(said) & Counter(answer)).total()
    return 2 * common / (len(said) + len(answer))
