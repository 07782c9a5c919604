import gzip
import json
from pathlib import Path

import datasets
import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import Source
from splitlearn.pretrain.text import TextSettings, open_text, text_source

ROWS = [("NA", "eins"), ('with "quotes", and commas', "zwei"), ("  ", "drei"), ("日本語", "vier")]


def written(folder: Path, form: str) -> TextSettings:
    path = folder / f"text.{form}"
    if form == "txt":
        path.write_text("\n".join(text for text, _ in ROWS) + "\n", encoding="utf-8")
    elif form == "csv":
        cells = ('"' + text.replace('"', '""') + f'",{pair}' for text, pair in ROWS)
        path.write_text("\n".join(("text,pair", *cells)) + "\n", encoding="utf-8")
    elif form == "tsv":
        cells = (f"{text}\t{pair}" for text, pair in ROWS)
        path.write_text("\n".join(("text\tpair", *cells)) + "\n", encoding="utf-8")
    elif form == "jsonl":
        path.write_text(
            "".join(json.dumps({"text": text, "pair": pair}) + "\n" for text, pair in ROWS)
        )
    else:
        columns = {"text": [text for text, _ in ROWS], "pair": [pair for _, pair in ROWS]}
        datasets.Dataset.from_dict(columns).to_parquet(path)
    return TextSettings(source=text_source(path))


@pytest.mark.parametrize("form", ["txt", "csv", "tsv", "jsonl", "parquet"])
def test_every_format_gives_the_same_passages(tmp_path: Path, form: str) -> None:
    settings = written(tmp_path, form)
    passages = open_text(settings, scratch=tmp_path / "scratch")
    assert len(passages) == len(ROWS)
    assert list(passages) == [(text,) for text, _ in ROWS]
    assert passages[3] == ("日本語",)
    assert settings.source.format == form


def test_translations_stand_beside_their_text(tmp_path: Path) -> None:
    written(tmp_path, "tsv")
    settings = TextSettings(source=text_source(tmp_path / "text.tsv"), pair_column="pair")
    assert list(open_text(settings, scratch=tmp_path / "scratch")) == ROWS


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("one\ntwo\n")
    settings = TextSettings(source=text_source(path))
    assert list(open_text(settings, scratch=tmp_path / "scratch")) == [("one",), ("two",)]


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    written(tmp_path, "csv")
    settings = TextSettings(source=text_source(tmp_path / "text.csv"), column="body")
    with pytest.raises(ManifestError, match='no column "body"; its columns are text, pair'):
        open_text(settings, scratch=tmp_path / "scratch")


def test_a_row_without_a_text_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "fine", "pair": "secret"}\n{"text": null, "pair": "secret"}\n')
    passages = open_text(
        TextSettings(source=text_source(path), pair_column="pair"), scratch=tmp_path / "s"
    )
    for read in (lambda: passages[1], lambda: list(passages)):
        with pytest.raises(ManifestError, match="row 2: column text is empty") as caught:
            read()
        assert "secret" not in str(caught.value)
    path.write_text('{"text": 5}\n')
    numbers = open_text(TextSettings(source=text_source(path)), scratch=tmp_path / "t")
    with pytest.raises(ManifestError, match="row 1: column text is no text"):
        numbers[0]


@pytest.mark.parametrize("form", ["txt", "jsonl", "parquet", "hub"])
def test_what_cannot_be_read_is_refused_and_not_quoted(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"text.{form}"
    path.write_bytes(b'{"text": "secret\xff')
    source = Source(text="no/such", name="no/such") if form == "hub" else text_source(path)
    settings = TextSettings(source=source)
    with pytest.raises(ManifestError, match="cannot be read") as caught:
        open_text(settings, scratch=tmp_path / "scratch")
    assert "secret" not in str(caught.value)


def test_an_empty_file_and_a_name_without_a_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("")
    with pytest.raises(ManifestError, match=r"no passage|cannot be read"):
        open_text(TextSettings(source=text_source(path)), scratch=tmp_path / "scratch")
    with pytest.raises(ManifestError, match=r"name it \.txt"):
        text_source(tmp_path / "text.docx")
