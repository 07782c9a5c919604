"""One side of sentence pairs out of a table: texts by sample id."""

import tempfile
from pathlib import Path

import datasets

from splitlearn.data.tables import open_table
from splitlearn.errors import ManifestError
from splitlearn.manifest import Source

__all__ = ["read_texts"]


def read_texts(
    source: Source, *, split: str, text: str, sample: str | None, first: int | None
) -> dict[str, str]:
    """Texts by id, in the order of their rows; empty texts are left out.

    split: of a hub's data set, where the source names none. text, sample: columns; without the latter a
    row's number, from 0, is its id. first: rows to read. Raises ManifestError for a source that cannot be
    read, lacks a column, has an id twice, or has no text.
    """
    with tempfile.TemporaryDirectory(prefix="splitlearn-") as scratch:
        try:
            table = open_table(source, split=split, scratch=Path(scratch))
        except (datasets.exceptions.DatasetsError, OSError, ValueError, EOFError, StopIteration):
            # The readers' own sentences may quote rows.
            raise ManifestError(
                f"{source.text} cannot be read as {source.format or 'a hub name'}; check file and format"
            ) from None
        for column in (text, *([sample] if sample is not None else [])):
            if column not in table.column_names:
                raise ManifestError(
                    f"{source.text} has no column {column!r}; it has {', '.join(table.column_names)}"
                )
        rows = range(len(table) if first is None else min(first, len(table)))
        table = table.select(rows)
        texts = [str(each).strip() for each in table[text]]
        names = [str(each) for each in (rows if sample is None else table[sample])]
    if len(set(names)) < len(names):
        raise ManifestError(
            f"{source.text} has an id twice in column {sample!r}; ids tell samples apart"
        )
    found = {name: said for name, said in zip(names, texts, strict=True) if said}
    if not found:
        raise ManifestError(f"{source.text} has no text in column {text!r}")
    return found
