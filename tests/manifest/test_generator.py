from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import load_generator

TEXT = """
[run]
folder = "work"

[identity]
folder = "identity"

[coordinator]
address = "hub.example:8000"
party = "hub"

[data]
language = "sw"
text = "lines.txt"

[vocabulary]
file = "tokenizer.json"

[policy]
file = "policy.toml"
"""


def write(folder: Path, text: str = TEXT) -> Path:
    for name in ("policy.toml", "tokenizer.json", "lines.txt", "rows.parquet"):
        (folder / name).touch()
    (folder / "generator.toml").write_text(text, encoding="utf-8")
    return folder / "generator.toml"


def test_settings_are_read_with_their_defaults(tmp_path: Path) -> None:
    settings = load_generator(write(tmp_path))
    assert settings.data.language == "sw"
    assert (settings.data.text.file, settings.data.text.format) == (tmp_path / "lines.txt", "txt")
    # A third to a quarter of the discriminator's width, by default.
    assert settings.model.width == 64
    assert settings.optimiser.total_steps is None


@pytest.mark.parametrize(
    ("text", "form"), [("rows.parquet", "parquet"), ("owner/set:sw@train", None)]
)
def test_text_may_be_a_table_or_on_a_hub(tmp_path: Path, text: str, form: str | None) -> None:
    found = load_generator(write(tmp_path, TEXT.replace("lines.txt", text))).data.text
    assert found.format == form


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"sw"', '"two words"', "data.language"),
        ("lines.txt", "gone.txt", "data.text"),
        ('"hub"', '"Hub!"', "coordinator.party"),
        ("hub.example:8000", "hub.example:0", "coordinator.address has port 0"),
        ("[policy]", "[model]\nheads = 5\n[policy]", "model.heads is 5"),
        ("[policy]", "[optimiser]\nclip = 0\n[policy]", "optimiser.clip is 0"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    with pytest.raises(ManifestError, match=told):
        load_generator(write(tmp_path, TEXT.replace(old, new)))
