"""Rows to token ids and targets, by the model's own fast tokenizer. Nothing here is ever sent.

Word tags go to the first piece of each word, the other pieces count for nothing. A context longer than
the limit becomes several windows that overlap by a quarter; in training a window without the answer is
left out, in evaluation the best span of all windows counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers import BatchEncoding, PreTrainedTokenizerBase

from splitlearn.manifest import Job
from splitlearn.tasks.rows import AnswerRow, PairRow, Part, PlainRow, Row, Rows, TextRow, TokenRow

__all__ = ["IGNORED", "Encoded", "Example", "encode"]

# The target that transformers' losses leave out.
IGNORED = -100


@dataclass(frozen=True)
class Example:
    """What the model sees and should say.

    targets: `labels` as one class or one class a token, or `start_positions` and `end_positions`.
    items: the example's weight in a mean loss. row: number of the row it was made of, from 0.
    words: for word tags, the word that each token with a target stands for, in order.
    offsets: for evaluation of question answering, where each context token stands in the context;
    None for tokens of the question and special ones. truth: the targets as the data have them, where
    `targets` are randomised ones. next_token: the targets are the ids themselves, but for the first one,
    which nothing says. target: the targets are another text's ids.
    """

    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...] | None
    targets: Mapping[str, int | tuple[int, ...]]
    items: int
    row: int
    words: tuple[int, ...] = ()
    offsets: tuple[tuple[int, int] | None, ...] | None = None
    truth: Mapping[str, int | tuple[int, ...]] | None = None
    next_token: bool = False
    target: bool = False


@dataclass(frozen=True)
class Encoded:
    """All examples of one part, the rows they were made of, and the names of the classes.

    gold: the true class names of each row: one, or one a word; none for question answering.
    left_out: training rows whose answer stands whole in no window.
    """

    examples: tuple[Example, ...]
    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    gold: tuple[tuple[str, ...], ...]
    left_out: int


def encode(
    rows: Rows, *, job: Job, part: Part, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> Encoded:
    """The examples of `rows`. ManifestError for a label that is none of `labels`, and for a row of
    which the tokenizer leaves nothing.
    """
    classes = _classes(rows, job=job, labels=labels)
    examples: list[Example] = []
    for first in range(0, len(rows.rows), _ROWS_AT_ONCE):
        block = rows.rows[first : first + _ROWS_AT_ONCE]
        examples.extend(
            _encoded(block, job=job, part=part, tokenizer=tokenizer, first=first, classes=classes)
        )
    for example in examples:
        if not example.items:
            wanted = "has another after it" if job.predicts else "has a tag"
            raise job.fault(
                f"data.{part}",
                f"({rows.name}) row {example.row + 1}: the tokenizer leaves no token that {wanted}",
            )
    if not examples:
        raise job.fault(
            "data.max_length", f"is {job.data.max_length}, which leaves no answer whole; take more"
        )
    return Encoded(
        examples=tuple(examples),
        rows=rows.rows,
        labels=tuple(labels),
        gold=tuple(tuple(labels[classes[name]] for name in _names(row)) for row in rows.rows),
        left_out=len(rows.rows) - len({example.row for example in examples}),
    )


_ROWS_AT_ONCE = 1_000
# Part of a window that the next one repeats.
_OVERLAP = 4


def _classes(rows: Rows, *, job: Job, labels: Sequence[str]) -> Mapping[str, int]:
    """Number of each label that the rows have. Where the rows have numbers and the job has names,
    the numbers are places in the list of names.
    """
    if not rows.labels:
        return {}
    numbers = {label: number for number, label in enumerate(labels)}
    if numbers.keys() >= set(rows.labels):
        return numbers
    places = {str(number): number for number in range(len(labels))}
    if places.keys() >= set(rows.labels):
        return places
    unknown = next(label for label in rows.labels if label not in numbers)
    raise job.fault(
        "model.labels",
        f"has {len(labels)} labels ({', '.join(labels[:10])}) and {rows.name} has another, "
        f'"{unknown[:60]}"; name all labels of the data there',
    )


def _names(row: Row) -> tuple[str, ...]:
    match row:
        case TextRow(label=label):
            return (label,)
        case TokenRow(tags=tags):
            return tags
    return ()


def _encoded(
    block: Sequence[Row],
    *,
    job: Job,
    part: Part,
    tokenizer: PreTrainedTokenizerBase,
    first: int,
    classes: Mapping[str, int],
) -> Iterator[Example]:
    limit = job.data.max_length
    match job.model.task:
        case "sequence-classification":
            texts = [row for row in block if isinstance(row, TextRow)]
            return _sequences(texts, tokenizer=tokenizer, first=first, classes=classes, limit=limit)
        case "token-classification":
            words = [row for row in block if isinstance(row, TokenRow)]
            return _tokens(words, tokenizer=tokenizer, first=first, classes=classes, limit=limit)
        case "question-answering":
            answers = [row for row in block if isinstance(row, AnswerRow)]
            return _windows(answers, tokenizer=tokenizer, first=first, part=part, limit=limit)
        case "causal-language-modelling":
            plain = [row for row in block if isinstance(row, PlainRow)]
            return _next_tokens(plain, tokenizer=tokenizer, first=first, limit=limit)
        case "sequence-to-sequence":
            pairs = [row for row in block if isinstance(row, PairRow)]
            return _pairs(pairs, tokenizer=tokenizer, first=first, limit=limit)


def _sequences(
    block: Sequence[TextRow],
    *,
    tokenizer: PreTrainedTokenizerBase,
    first: int,
    classes: Mapping[str, int],
    limit: int,
) -> Iterator[Example]:
    pairs = [row.pair for row in block if row.pair is not None]
    encoding = tokenizer(
        [row.text for row in block], pairs or None, truncation=True, max_length=limit
    )
    for place, row in enumerate(block):
        yield Example(
            input_ids=tuple(encoding["input_ids"][place]),
            token_type_ids=_types(encoding, place),
            targets={"labels": classes[row.label]},
            items=1,
            row=first + place,
        )


def _tokens(
    block: Sequence[TokenRow],
    *,
    tokenizer: PreTrainedTokenizerBase,
    first: int,
    classes: Mapping[str, int],
    limit: int,
) -> Iterator[Example]:
    encoding = tokenizer(
        [list(row.tokens) for row in block],
        is_split_into_words=True,
        truncation=True,
        max_length=limit,
    )
    for place, row in enumerate(block):
        words = encoding.word_ids(place)
        labels = tuple(
            IGNORED if word is None or word == before else classes[row.tags[word]]
            for before, word in zip([None, *words], words, strict=False)
        )
        yield Example(
            input_ids=tuple(encoding["input_ids"][place]),
            token_type_ids=_types(encoding, place),
            targets={"labels": labels},
            items=sum(label != IGNORED for label in labels),
            row=first + place,
            words=tuple(
                word
                for word, label in zip(words, labels, strict=True)
                if word is not None and label != IGNORED
            ),
        )


def _windows(
    block: Sequence[AnswerRow],
    *,
    tokenizer: PreTrainedTokenizerBase,
    first: int,
    part: Part,
    limit: int,
) -> Iterator[Example]:
    special = tokenizer.num_special_tokens_to_add(pair=True)
    for place, row in enumerate(block):
        question, length = _shortened(
            row.question, tokenizer=tokenizer, limit=(limit - special) // 2
        )
        encoding = tokenizer(
            question,
            row.context,
            truncation="only_second",
            max_length=limit,
            stride=(limit - special - length) // _OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        answer = row.answers[0]
        start = row.start + len(answer) - len(answer.lstrip())
        for window, ids in enumerate(encoding["input_ids"]):
            offsets = _offsets(encoding, window)
            span = _span(offsets, start=start, end=start + len(answer.strip()))
            if span is None and part == "train":
                continue
            first_token, last_token = span or (0, 0)
            yield Example(
                input_ids=tuple(ids),
                token_type_ids=_types(encoding, window),
                targets={"start_positions": first_token, "end_positions": last_token},
                items=1,
                row=first + place,
                offsets=offsets if part == "evaluate" else None,
            )


def _next_tokens(
    block: Sequence[PlainRow], *, tokenizer: PreTrainedTokenizerBase, first: int, limit: int
) -> Iterator[Example]:
    """A text that was not cut ends with the token that says so: a model learns where to stop."""
    end = tokenizer.eos_token_id
    encoding = tokenizer([row.text for row in block], truncation=True, max_length=limit)
    for place, found in enumerate(encoding["input_ids"]):
        ids = tuple(found)
        if isinstance(end, int) and len(ids) < limit and ids[-1:] != (end,):
            ids += (end,)
        yield Example(
            input_ids=ids,
            token_type_ids=None,
            targets={"labels": (IGNORED, *ids[1:])},
            items=len(ids) - 1,
            row=first + place,
            next_token=True,
        )


def _pairs(
    block: Sequence[PairRow], *, tokenizer: PreTrainedTokenizerBase, first: int, limit: int
) -> Iterator[Example]:
    cut = {"truncation": True, "max_length": limit}
    sources = tokenizer([row.text for row in block], **cut)
    targets = tokenizer(text_target=[row.target for row in block], **cut)
    for place in range(len(block)):
        labels = tuple(targets["input_ids"][place])
        yield Example(
            input_ids=tuple(sources["input_ids"][place]),
            token_type_ids=None,
            targets={"labels": labels},
            items=len(labels),
            row=first + place,
            target=True,
        )


def _shortened(text: str, *, tokenizer: PreTrainedTokenizerBase, limit: int) -> tuple[str, int]:
    """The text, cut so that it has about `limit` tokens at most, and how many it has."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if len(encoding["input_ids"]) > limit:
        text = text[: encoding["offset_mapping"][limit - 1][1]]
        encoding = tokenizer(text, add_special_tokens=False)
    return text, len(encoding["input_ids"])


def _offsets(encoding: BatchEncoding, window: int) -> tuple[tuple[int, int] | None, ...]:
    return tuple(
        (start, end) if sequence == 1 and end > start else None
        for sequence, (start, end) in zip(
            encoding.sequence_ids(window), encoding["offset_mapping"][window], strict=True
        )
    )


def _span(
    offsets: Sequence[tuple[int, int] | None], *, start: int, end: int
) -> tuple[int, int] | None:
    """First and last token of characters [start, end), if the window holds all of them."""
    context = [(token, *offset) for token, offset in enumerate(offsets) if offset is not None]
    if not context or context[0][1] > start or context[-1][2] < end:
        return None
    first = next(token for token, _, token_end in context if token_end > start)
    last = next(token for token, token_start, _ in reversed(context) if token_start < end)
    return (first, last) if first <= last else None


def _types(encoding: BatchEncoding, place: int) -> tuple[int, ...] | None:
    types = encoding.get("token_type_ids")
    return None if types is None else tuple(types[place])
