from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import Field

from splitlearn.errors import ManifestError
from splitlearn.manifest.fields import Fault, FileField, Table
from splitlearn.manifest.reading import MAX_BYTES, read


class Inner(Table):
    count: int = Field(default=1, ge=1, le=9, description="a whole number from 1 to 9")
    names: tuple[str, ...] = Field(default=(), strict=False, description="a list of names")
    rate: float = Field(default=0.5, gt=0, description="a number above 0")


class Outer(Table):
    inner: Inner
    file: FileField | None = Field(default=None, description="a file")


def faults(outer: Outer) -> Iterator[Fault]:
    if outer.inner.count == 7:
        yield Fault("inner.count", "is 7, which brings too much luck; it takes another number")


def sentence(folder: Path, text: str | bytes) -> str:
    """What a user is told about the file, without the file's name in front."""
    path = folder / "x.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ManifestError) as caught:
        read(path, model=Outer, faults=faults)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(f"{path}: ").removeprefix(f"{path} ")


def test_a_good_file_is_read_and_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("inner = {count = 3, names = ['a', 'ж'], rate = 2}")
    outer = read(tmp_path / "x.toml", model=Outer, faults=faults)
    assert outer.inner == Inner(count=3, names=("a", "ж"), rate=2.0)
    with pytest.raises(ValueError, match="frozen"):
        outer.inner.count = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[inner]\ncuont = 1",
            "inner.cuont is not a key; did you mean inner.count? [inner] takes count, names, rate",
        ),
        ("[inner]\nqqq = 1", "inner.qqq is not a key; [inner] takes count, names, rate"),
        (
            "[iner]\ncount = 1",
            "iner is not a key; did you mean inner? a file of this kind has the tables inner, file",
        ),
        ("", "inner is missing; it takes a table with count, names, rate"),
        ("inner = 3", "inner is 3; it takes a table with count, names, rate"),
        ("[[inner]]", "inner is [{}]; it takes a table with count, names, rate"),
        ("[inner]\ncount = 0", "inner.count is 0; it takes a whole number from 1 to 9"),
        ("[inner]\ncount = '1'", 'inner.count is "1"; it takes a whole number from 1 to 9'),
        ("[inner]\ncount = true", "inner.count is true; it takes a whole number from 1 to 9"),
        ("[inner]\ncount = 1.0", "inner.count is 1.0; it takes a whole number from 1 to 9"),
        ("[inner]\nrate = nan", "inner.rate is NaN; it takes a number above 0"),
        ("[inner]\nrate = inf", "inner.rate is Infinity; it takes a number above 0"),
        ("[inner]\nnames = ['a', 1]", "inner.names is 1; it takes a list of names"),
        ("[inner]\nnames = 'a'", 'inner.names is "a"; it takes a list of names'),
        (
            "[inner]\ncount = 2024-01-01",
            "inner.count is 2024-01-01; it takes a whole number from 1 to 9",
        ),
        (
            "[inner]\ncount = 7",
            "inner.count is 7, which brings too much luck; it takes another number",
        ),
    ],
)
def test_one_sentence_names_the_key_the_value_and_what_is_allowed(
    tmp_path: Path, text: str, told: str
) -> None:
    assert sentence(tmp_path, text) == told


def test_a_missing_file_is_named_with_the_place_where_it_was_looked_for(tmp_path: Path) -> None:
    told = sentence(tmp_path, "file = 'a.txt'\n[inner]")
    assert told == f'file is "a.txt" (there is no file {tmp_path / "a.txt"}); it takes a file'


def test_a_long_value_is_quoted_in_part(tmp_path: Path) -> None:
    assert len(sentence(tmp_path, f"[inner]\ncount = '{'x' * 5000}'")) < 200


def test_an_unknown_key_is_named_before_a_missing_one(tmp_path: Path) -> None:
    assert "did you mean inner?" in sentence(tmp_path, "[innner]")


@pytest.mark.parametrize(
    "text",
    [b"[inner", b"\xff\xfe", b"a = 1\na = 2", b"x = " + b"[" * 5000, b"x = 1" + b"0" * 5000],
    ids=["syntax", "encoding", "twice", "nested", "digits"],
)
def test_what_is_no_toml_is_told_so(tmp_path: Path, text: bytes) -> None:
    sentence(tmp_path, text)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    assert f"larger than {MAX_BYTES} bytes" in sentence(tmp_path, b"#" * (MAX_BYTES + 1))


@pytest.mark.parametrize("name", ["gone.toml", ".", "x" * 5000, "a\0b"])
def test_a_path_that_cannot_be_read_is_told_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        read(tmp_path / name, model=Outer, faults=faults)
