"""One party's text as numbered passages, from a file or a hub, on disk and mapped into memory.

A text is never logged and never quoted in an error. Reads through the datasets library; what it
unpacks lies in the folder that the caller gives.
"""

import csv
import gzip
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import datasets
from datasets.exceptions import DatasetsError

from splitlearn.errors import ManifestError

__all__ = ["FORMATS", "Form", "Passages", "TextSettings", "form_of", "open_text"]

Form = Literal["txt", "csv", "tsv", "jsonl", "parquet", "hub"]
FORMATS: tuple[Form, ...] = ("txt", "csv", "tsv", "jsonl", "parquet", "hub")

Passage = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Where passages come from.

    source: a file, or a data set's name if form is "hub". A line of txt is a passage. column: where
    the text stands, pair_column: its translation, if there is one. config, split: of a hub's data set.
    """

    source: str
    form: Form
    column: str = "text"
    pair_column: str | None = None
    config: str | None = None
    split: str = "train"


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
    name = settings.source
    try:
        table = _read(settings, scratch=scratch)
    except (DatasetsError, OSError, ValueError, EOFError, StopIteration) as error:
        # The readers' own sentences may quote rows.
        raise ManifestError(
            f"text {name} cannot be read as {settings.form} ({type(error).__name__}); give a file of "
            "txt, csv, tsv, jsonl or parquet in UTF-8, or a data set of the hub"
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


def form_of(path: Path) -> Form:
    """How a file is written, by its name; ".gz" at the end is passed over. ManifestError if unknown.

    >>> form_of(Path("lines.jsonl.gz"))
    'jsonl'
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lstrip(".")
    found: Form | None = next((form for form in FORMATS[:-1] if form == suffix), None)
    if found is None:
        raise ManifestError(
            f"{path} has no ending that says its format; name it .txt, .csv, .tsv, .jsonl or .parquet"
        )
    return found


_ROWS_AT_ONCE = 1_000
_BUILDERS = {"txt": "text", "csv": "csv", "tsv": "csv", "jsonl": "json", "parquet": "parquet"}
# Cells are texts: "NA" stays what it is. tsv is read as GLUE writes it, without quotes.
_CELLS: dict[str, object] = {
    "keep_default_na": False,
    "skip_blank_lines": False,
    # Else a row with a cell too many would silently shift.
    "index_col": False,
}
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_QUOTING: dict[str, Literal[0, 3]] = {"csv": csv.QUOTE_MINIMAL, "tsv": csv.QUOTE_NONE}


def _read(settings: TextSettings, *, scratch: Path) -> datasets.Dataset:
    with _quiet():
        if settings.form == "hub":
            return datasets.load_dataset(settings.source, settings.config, split=settings.split)
        cells: dict[str, object] = {}
        if settings.form in _SEPARATORS:
            cells = {
                **_CELLS,
                "sep": _SEPARATORS[settings.form],
                "quoting": _QUOTING[settings.form],
                "features": _texts(Path(settings.source), form=settings.form),
            }
        return datasets.load_dataset(
            _BUILDERS[settings.form],
            data_files=settings.source,
            split="train",
            cache_dir=str(scratch),
            **cells,
        )


def _texts(path: Path, *, form: str) -> datasets.Features:
    """Every column of a csv or tsv file, as text."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, mode="rt", encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file, delimiter=_SEPARATORS[form], quoting=_QUOTING[form]), [])
    return datasets.Features({name: datasets.Value("string") for name in header})


@contextmanager
def _quiet() -> Iterator[None]:
    """What the readers log and draw would quote rows."""
    verbosity = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of header or names")
            yield
    finally:
        datasets.logging.set_verbosity(verbosity)
