import gzip
import logging
from pathlib import Path

import pytest
from datasets.exceptions import DatasetsError

from splitlearn.data import open_table
from splitlearn.manifest import Source

TEXTS = {
    "txt": "one two\n007\n",
    "csv": 'text,number\n"one, two",NA\n007,1\n',
    "tsv": 'text\tnumber\n"one\tNA\n007\t1\n',
    "jsonl": '{"text": "one two", "number": "NA"}\n{"text": "007", "number": "1"}\n',
}


def opened(folder: Path, form: str, text: str, *, packed: bool = False) -> list[dict[str, object]]:
    path = folder / (f"rows.{form}.gz" if packed else f"rows.{form}")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    source = Source(text=path.name, file=path, format=form)
    return list(open_table(source, split="train", scratch=folder / "scratch"))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", TEXTS)
def test_cells_are_the_texts_that_stand_in_the_file(
    tmp_path: Path, form: str, packed: bool
) -> None:
    rows = opened(tmp_path, form, TEXTS[form], packed=packed)
    assert rows[1]["text"] == "007"
    if form != "txt":
        assert [row["number"] for row in rows] == ["NA", "1"]
    if form == "tsv":
        assert rows[0]["text"] == '"one'


@pytest.mark.parametrize("text", ["a,a\n1,2\n", "a,\n1,2\n", "a,b\n1,2,3\n"])
def test_columns_that_cannot_be_told_apart_are_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises((DatasetsError, ValueError)):
        opened(tmp_path, "csv", text)


def test_nothing_of_a_row_is_logged_or_drawn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises((DatasetsError, ValueError)):
        opened(tmp_path, "jsonl", '{"text": "secret"}\n{"text": {"secret": 3}}\n{oops secret')
    out, err = capfd.readouterr()
    assert "secret" not in out + err
