from pathlib import Path

from parties.demo_pretrain_data import DEMO, Ports, prepare
from splitlearn import policy
from splitlearn.manifest import load_generator, load_pretrain


def test_every_partys_files_are_whole_and_agree(tmp_path: Path) -> None:
    ports = Ports()
    assert len({ports.serve, ports.control, ports.registrar, ports.listen}) == 4
    prepare(tmp_path / "out", plan=DEMO, ports=ports)
    job = load_pretrain(tmp_path / "out" / "pretrain.toml")
    assert job.rounds.least == len(DEMO.languages) == 4
    policy.load(job.policy.file)
    for party, language in DEMO.languages.items():
        settings = load_generator(tmp_path / "out" / f"{party}.toml")
        assert settings.data.language == language
        assert settings.vocabulary.file == job.vocabulary.file
        assert settings.coordinator.address.port == ports.serve
        assert settings.model.positions >= job.batch.width
        policy.load(settings.policy.file)
