"""One source as a table. Cells of csv and tsv are texts: "NA" and "007" stay what they are."""

import csv
import gzip
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import datasets

from splitlearn.manifest import Source

__all__ = ["open_table"]

_BUILDERS = {"txt": "text", "csv": "csv", "tsv": "csv", "jsonl": "json", "parquet": "parquet"}
_SEPARATORS = {"csv": ",", "tsv": "\t"}
# tsv is read as GLUE writes it, without quotes.
_QUOTING: Mapping[str, Literal[0, 3]] = {"csv": csv.QUOTE_MINIMAL, "tsv": csv.QUOTE_NONE}


def open_table(source: Source, *, split: str, scratch: Path) -> datasets.Dataset:
    """The rows of a file, or of a data set of a hub.

    split: of a hub's data set, where the source names none. scratch: gets what a reader unpacks; the
    table needs it as long as it is used. Raises what the library raises: DatasetsError, OSError,
    ValueError, EOFError or StopIteration, whose sentences may quote rows.
    """
    with _quiet():
        if source.file is None:
            return datasets.load_dataset(source.name, source.config, split=source.split or split)
        assert source.format is not None, "a file has a format"
        cells: dict[str, object] = {}
        if source.format in _SEPARATORS:
            cells = {
                "sep": _SEPARATORS[source.format],
                "quoting": _QUOTING[source.format],
                "features": _texts(source.file, form=source.format),
                "keep_default_na": False,
                "skip_blank_lines": False,
                # Else a row with a cell too many would silently shift.
                "index_col": False,
            }
        return datasets.load_dataset(
            _BUILDERS[source.format],
            data_files=str(source.file),
            split="train",
            cache_dir=str(scratch),
            **cells,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """What the readers log and draw would quote rows; what they only warn of is an error here."""
    verbosity = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of header or names")
            yield
    finally:
        datasets.logging.set_verbosity(verbosity)


def _texts(path: Path, *, form: str) -> datasets.Features:
    """Every column of a csv or tsv file, as text."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, mode="rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=_SEPARATORS[form], quoting=_QUOTING[form])
        header = next(rows, [])
    if len(set(header)) < len(header) or not all(header):
        raise ValueError("its first line has an empty column name, or one twice")
    return datasets.Features({name: datasets.Value("string") for name in header})
