from pathlib import Path

import pytest

from parties.demo_tongues_data import LANGUAGES, Ports, prepare, write_lines
from splitlearn import policy
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_generator, load_pretrain


def test_every_partys_files_are_whole_and_agree(tmp_path: Path) -> None:
    ports = Ports()
    assert len({ports.serve, ports.control, ports.registrar, ports.listen}) == 4
    prepare(tmp_path / "out", ports=ports)
    job = load_pretrain(tmp_path / "out" / "pretrain.toml")
    assert job.rounds.least == len(LANGUAGES) == 4
    policy.load(job.policy.file)
    for party, language in LANGUAGES.items():
        settings = load_generator(tmp_path / "out" / f"{party}.toml")
        assert settings.data.language == language
        assert settings.vocabulary.file == job.vocabulary.file
        assert settings.coordinator.address.port == ports.serve
        assert settings.model.positions >= job.batch.width
        policy.load(settings.policy.file)


@pytest.mark.parametrize("language", LANGUAGES.values())
def test_a_language_has_lines_to_train_on(tmp_path: Path, language: str) -> None:
    count = write_lines(language, tmp_path / "lines.txt")
    lines = (tmp_path / "lines.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == count > 200
    assert all(line.strip() for line in lines)


def test_a_language_that_the_package_has_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no lines"):
        write_lines("klingon", tmp_path / "lines.txt")
