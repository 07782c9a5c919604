import gzip
from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import Source
from splitlearn.translation.reading import read_texts


def source(path: Path, text: str, *, form: str) -> Source:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return Source(text=str(path), file=path, format=form)


def test_lines_are_numbered_and_empty_ones_left_out(tmp_path: Path) -> None:
    found = source(tmp_path / "a.txt.gz", "eins\n\ndrei\nvier\n", form="txt")
    assert read_texts(found, split="train", text="text", sample=None, first=3) == {
        "0": "eins",
        "2": "drei",
    }


def test_a_table_has_ids_of_its_own(tmp_path: Path) -> None:
    found = source(tmp_path / "a.tsv", "key\tde\nx7\teins\nx9\tzwei\n", form="tsv")
    texts = read_texts(found, split="train", text="de", sample="key", first=None)
    assert texts == {"x7": "eins", "x9": "zwei"}


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("key\tde\nx\teins\n", "fr", "no column 'fr'; it has key, de"),
        ("key\tde\nx\teins\nx\tzwei\n", "de", "an id twice"),
        ("key\tde\nx\t\n", "de", "no text"),
        ("key\tkey\nx\teins\n", "de", "cannot be read as tsv"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, column: str, says: str) -> None:
    found = source(tmp_path / "a.tsv", text, form="tsv")
    with pytest.raises(ManifestError, match=says):
        read_texts(found, split="train", text=column, sample="key", first=None)
