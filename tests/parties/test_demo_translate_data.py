from pathlib import Path

import pytest

from parties.demo_translate_data import RUNS, Ports, Size, pairs_of, prepare
from splitlearn import policy
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_decoder, load_encoder


def pairs(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "val"):
        for language in ("de", "en"):
            (folder / f"{split}.{language}.txt").write_text("a\nb\n")
    return folder


def test_every_partys_files_are_whole_and_agree_and_pairs_stay_where_they_lie(
    tmp_path: Path,
) -> None:
    ports, where = Ports(), pairs(tmp_path / "pairs")
    prepare(tmp_path / "out", where=str(where), languages=("de", "en"), ports=ports, size=Size())
    for name, codecs in RUNS.items():
        encoder = load_encoder(tmp_path / "out" / f"encoder-{name}.toml")
        decoder = load_decoder(tmp_path / "out" / f"decoder-{name}.toml")
        assert encoder.data.train.file == where / "train.de.txt"
        assert decoder.data.evaluate.file == where / "val.en.txt"
        assert (decoder.codec.activation, decoder.codec.gradient) == codecs
        assert encoder.model.path == decoder.model.path
        for settings in (encoder, decoder):
            policy.load(settings.policy.file)
    assert len({*ports.encoder.values(), *ports.link.values()}) == 4


def test_a_hub_name_is_taken_by_its_columns() -> None:
    found = pairs_of("owner/pairs", language="de")
    assert (found.train, found.evaluate, found.text) == (
        "owner/pairs@train",
        "owner/pairs@validation",
        "de",
    )


def test_pairs_that_are_not_there_are_answered_with_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"has no sentence pairs .* by --pairs"):
        pairs_of(str(tmp_path), language="de")
