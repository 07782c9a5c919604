"""The lines of the pre-training demo, written for real from the package."""

from pathlib import Path

import pytest

from parties import demo_lines
from parties.demo_lines import LANGUAGES, write_lines
from splitlearn.errors import ManifestError


def test_every_language_gets_a_file_of_whole_lines(tmp_path: Path) -> None:
    first, again = (write_lines(tmp_path / name) for name in ("a", "b"))
    assert set(first) == set(LANGUAGES)
    for language, path in first.items():
        text = path.read_text(encoding="utf-8")
        assert text == again[language].read_text(encoding="utf-8")
        lines = text.splitlines()
        assert len(lines) > 200
        assert all(line == " ".join(line.split()) and line for line in lines)
    assert "ї" in first["uk"].read_text(encoding="utf-8")
    assert "¿" in first["es"].read_text(encoding="utf-8")


def test_what_is_said_is_lines_of_text() -> None:
    assert demo_lines._said(["one  two", 3, "", None, "four"]) == ["one two", "four"]
    assert demo_lines._said("alone") == ["alone"]


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(ManifestError, match=r"pip install 'splitlearn\[demo-pretrain\]'"):
        demo_lines._package("no_such_package_anywhere")
