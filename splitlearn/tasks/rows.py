"""Rows of a job's data, read through the datasets library and checked one by one.

A text is never changed, never logged and never quoted in an error: errors name file, column and row
number (the first row of data is row 1). What the reader unpacks on disk goes to a temporary folder
inside the run's own folder and is gone when the rows are read.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import datasets
from datasets.exceptions import DatasetsError

from splitlearn.data import open_table
from splitlearn.manifest import Job, Source

__all__ = [
    "AnswerRow",
    "PairRow",
    "Part",
    "PlainRow",
    "Row",
    "Rows",
    "TextRow",
    "TokenRow",
    "load_rows",
]

Part = Literal["train", "evaluate"]


@dataclass(frozen=True)
class TextRow:
    """A text, or a pair of texts, with one label."""

    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class TokenRow:
    """Words with one tag each."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class AnswerRow:
    """A question about a context. The first answer stands at character `start` of the context."""

    question: str
    context: str
    answers: tuple[str, ...]
    start: int


@dataclass(frozen=True)
class PlainRow:
    """A text alone."""

    text: str


@dataclass(frozen=True)
class PairRow:
    """A text, and the one that it has to become."""

    text: str
    target: str


Row = TextRow | TokenRow | AnswerRow | PlainRow | PairRow


@dataclass(frozen=True)
class Rows:
    """All rows of one part of the data. `labels`: names found, in the data set's own order if it has
    one, else sorted, numbers by value; empty for tasks without classes. `name`: what errors call it.
    """

    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    name: str


def load_rows(job: Job, *, part: Part) -> Rows:
    """The rows of data.train or data.evaluate. ManifestError for a file that cannot be read, a missing
    column, and the first empty, ill-typed or inconsistent row.
    """
    key = f"data.{part}"
    source = job.data.train if part == "train" else job.data.evaluate
    if source is None:
        raise job.fault(
            key, "is missing; it takes a csv, tsv, jsonl or parquet file, or a hub name"
        )
    columns = {role: name for role in _ROLES if (name := getattr(job.data, role)) is not None}
    rows: list[Row] = []
    try:
        with _scratch(job) as scratch:
            table = open_table(source, split=_HUB_SPLIT[part], scratch=scratch)
            _check_columns(job, table, source=source, columns=columns)
            declared = _declared_labels(table, columns.get("label") or columns.get("tags"))
            for record in _records(table, columns=columns, declared=declared):
                rows.append(_PARSE[job.model.task](record))  # noqa: PERF401 - rows counts for errors
            del table
    except _BadRow as bad:
        raise job.fault(key, f"({source.text}) row {len(rows) + 1}: {bad}") from None
    except (DatasetsError, OSError, ValueError, EOFError, StopIteration) as error:
        raise job.fault(key, f"({source.text}) cannot be read: {_reason(error)}") from None
    if not rows:
        raise job.fault(key, f"({source.text}) has no rows; it takes at least one")
    return Rows(rows=tuple(rows), labels=declared or _found_labels(rows), name=source.text)


class _BadRow(Exception):
    """Why a row is not one; raised and caught in this file."""


_ROLES = (
    *("text", "text_pair", "label", "tokens", "tags"),
    *("question", "context", "answer_text", "answer_start", "target"),
)
_HUB_SPLIT: Mapping[Part, str] = {"train": "train", "evaluate": "validation"}
_ROWS_AT_ONCE = 1_000


@contextmanager
def _scratch(job: Job) -> Iterator[Path]:
    try:
        job.run.folder.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=job.run.folder, prefix=".reading-")
    except OSError as error:
        raise job.fault(
            "run.folder", f"{job.run.folder} cannot be written ({error.strerror})"
        ) from None
    with folder as name:
        yield Path(name)


def _check_columns(
    job: Job, table: datasets.Dataset, *, source: Source, columns: Mapping[str, str]
) -> None:
    for role, name in columns.items():
        if _top(table, name) not in table.column_names:
            raise job.fault(
                f"data.{role}",
                f'is "{name}", which {source.text} does not have; its columns are '
                f"{', '.join(table.column_names)}",
            )


def _top(table: datasets.Dataset, name: str) -> str:
    return name if name in table.column_names else name.split(".", maxsplit=1)[0]


def _records(
    table: datasets.Dataset, *, columns: Mapping[str, str], declared: tuple[str, ...]
) -> Iterator[Mapping[str, object]]:
    """Row after row by role, labels of a declared set by name."""
    paths = {
        role: (top := _top(table, name), name.removeprefix(top).split(".")[1:])
        for role, name in columns.items()
    }
    for block in table.iter(batch_size=_ROWS_AT_ONCE):
        for row in range(len(next(iter(block.values())))):
            record = {role: _reach(block[top][row], steps) for role, (top, steps) in paths.items()}
            for role in {"label", "tags"} & record.keys():
                record[role] = _named(record[role], declared)
            yield record


def _reach(cell: object, steps: list[str]) -> object:
    for step in steps:
        if isinstance(cell, list):
            cell = [_reach(inner, [step]) for inner in cell]
        else:
            cell = cell.get(step) if isinstance(cell, dict) else None
    return cell


def _declared_labels(table: datasets.Dataset, name: str | None) -> tuple[str, ...]:
    """Label names that the data set itself declares, in its order."""
    feature = table.features.get(name) if name else None
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else ()


def _named(value: object, declared: tuple[str, ...]) -> object:
    if isinstance(value, list):
        return [_named(inner, declared) for inner in value]
    if declared and isinstance(value, int) and 0 <= value < len(declared):
        return declared[value]
    return value


def _text_row(record: Mapping[str, object]) -> TextRow:
    pair = _text(record, "text_pair") if "text_pair" in record else None
    return TextRow(text=_text(record, "text"), pair=pair, label=_label(record["label"], "label"))


def _token_row(record: Mapping[str, object]) -> TokenRow:
    tokens, tags = _listed(record["tokens"], "tokens"), _listed(record["tags"], "tags")
    if len(tokens) != len(tags):
        raise _BadRow(f"has {len(tokens)} tokens and {len(tags)} tags; each token takes one tag")
    words = [token for token in tokens if isinstance(token, str) and token.strip()]
    if len(words) < len(tokens):
        raise _BadRow("has a token that is empty or no text")
    return TokenRow(tokens=tuple(words), tags=tuple(_label(tag, "tags") for tag in tags))


def _answer_row(record: Mapping[str, object]) -> AnswerRow:
    question, context = _text(record, "question"), _text(record, "context")
    texts, starts = record["answer_text"], record["answer_start"]
    given = texts if isinstance(texts, list) else [texts]
    answers = [answer for answer in given if isinstance(answer, str) and answer.strip()]
    start = starts[0] if isinstance(starts, list) and starts else starts
    if isinstance(start, str) and start.isascii() and start.isdigit():
        start = int(start)
    if not answers or len(answers) < len(given):
        raise _BadRow("has no answer text; questions without an answer are not a task of ours")
    if not isinstance(start, int) or isinstance(start, bool):
        raise _BadRow("has an answer_start that is no whole number")
    if start < 0 or not context.startswith(answers[0], start):
        raise _BadRow(f"has an answer that does not stand at character {start} of its context")
    return AnswerRow(question=question, context=context, answers=tuple(answers), start=start)


_PARSE: Mapping[str, Callable[[Mapping[str, object]], Row]] = {
    "sequence-classification": _text_row,
    "token-classification": _token_row,
    "question-answering": _answer_row,
    "causal-language-modelling": lambda record: PlainRow(_text(record, "text")),
    "sequence-to-sequence": lambda record: PairRow(_text(record, "text"), _text(record, "target")),
}


def _text(record: Mapping[str, object], role: str) -> str:
    value = record[role]
    if not isinstance(value, str):
        raise _BadRow(f"has a {type(value).__name__} where {role} takes a text")
    if not value.strip():
        raise _BadRow(f"has an empty {role}")
    return value


def _label(value: object, role: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _BadRow(f"has a {type(value).__name__} where {role} takes a name or a whole number")
    if not str(value).strip():
        raise _BadRow(f"has an empty {role}")
    return str(value)


def _listed(value: object, role: str) -> list[object]:
    """A list as it is; a text of csv or tsv split at spaces."""
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not value:
        raise _BadRow(f"has no {role}; it takes a list, or a text with spaces between them")
    return value


def _found_labels(rows: list[Row]) -> tuple[str, ...]:
    found: set[str] = set()
    for row in rows:
        match row:
            case TextRow(label=label):
                found.add(label)
            case TokenRow(tags=tags):
                found.update(tags)
    numbers = all(label.removeprefix("-").isdecimal() for label in found)
    return tuple(sorted(found, key=int if numbers else str))


def _reason(error: BaseException) -> str:
    """The reader's own first line. Readers name lines, columns and types; no row is quoted."""
    cause = error.__cause__ or error
    line = next(iter(str(cause).splitlines()), "")
    if not line or "corresponds to no data" in line:
        return "it has no rows"
    return f"{type(cause).__name__}: {line[:200]}"
