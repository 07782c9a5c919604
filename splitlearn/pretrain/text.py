"""One party's text as numbered passages, from a file or a hub, on disk and mapped into memory.

A text is never logged and never quoted in an error. Reads through the datasets library; what it
unpacks lies in the folder that the caller gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
from datasets.exceptions import DatasetsError

from splitlearn.data import open_table
from splitlearn.errors import ManifestError
from splitlearn.manifest import TEXT_FORMATS, Source

__all__ = ["Passages", "TextSettings", "open_text", "text_source"]

Passage = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Where passages come from. A line of txt is one.

    column: where the text stands, pair_column: its translation, if there is one.
    """

    source: Source
    column: str = "text"
    pair_column: str | None = None


@dataclass(frozen=True)
class Passages:
    """Passages by number, each one text, or two where there are translations."""

    table: datasets.Dataset
    columns: tuple[str, ...]
    name: str

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Passage:
        """Raises ManifestError where the row has no text."""
        return self._checked(self.table[number], number=number)

    def __iter__(self) -> Iterator[Passage]:
        number = 0
        for block in self.table.iter(batch_size=_ROWS_AT_ONCE):
            for row in range(len(block[self.columns[0]])):
                yield self._checked({c: block[c][row] for c in self.columns}, number=number)
                number += 1

    def _checked(self, row: dict[str, object], *, number: int) -> Passage:
        cells = tuple(row[column] for column in self.columns)
        for column, cell in zip(self.columns, cells, strict=True):
            if not isinstance(cell, str):
                raise ManifestError(
                    f"{self.name}, row {number + 1}: column {column} is "
                    f"{'empty' if cell is None else 'no text'}; mend or remove the row"
                )
        return cells  # type: ignore[return-value]  # each was checked above


def open_text(settings: TextSettings, *, scratch: Path) -> Passages:
    """The passages of a text. `scratch`: a folder for what the reader unpacks.

    Raises ManifestError for a file that cannot be read, has no passage, or lacks a column.
    """
    source, name = settings.source, settings.source.text
    try:
        table = open_table(source, split="train", scratch=scratch)
    except (DatasetsError, OSError, ValueError, EOFError, StopIteration) as error:
        # The readers' own sentences may quote rows.
        raise ManifestError(
            f"text {name} cannot be read as {source.format or 'a hub name'} "
            f"({type(error).__name__}); give a file of txt, csv, tsv, jsonl or parquet in UTF-8, or a "
            "data set of the hub"
        ) from None
    wanted = (settings.column, settings.pair_column)
    columns = tuple(column for column in wanted if column is not None)
    for column in columns:
        if column not in table.column_names:
            raise ManifestError(
                f'text {name} has no column "{column}"; its columns are '
                f"{', '.join(table.column_names)}"
            )
    if not len(table):
        raise ManifestError(f"text {name} has no passage; it takes at least one")
    return Passages(table=table.select_columns(list(columns)), columns=columns, name=name)


def text_source(path: Path) -> Source:
    """A file of text, by its name; ".gz" at the end is passed over. ManifestError if that says no format.

    >>> text_source(Path("lines.jsonl.gz")).format
    'jsonl'
    """
    form = Path(path.name.removesuffix(".gz")).suffix.lstrip(".")
    if form not in TEXT_FORMATS:
        raise ManifestError(
            f"{path} has no ending that says its format; name it .txt, .csv, .tsv, .jsonl or .parquet"
        )
    return Source(text=str(path), file=path, format=form)


_ROWS_AT_ONCE = 1_000
