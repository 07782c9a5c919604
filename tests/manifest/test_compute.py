from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import Address, load_compute

TEXT = """
[run]
folder = "work"

[identity]
folder = "identity"

[peer]
party = "clinic"
listen = "0.0.0.0:7000"

[policy]
file = "policy.toml"
"""


def write(folder: Path, text: str) -> Path:
    (folder / "policy.toml").touch()
    (folder / "compute.toml").write_text(text, encoding="utf-8")
    return folder / "compute.toml"


def test_compute_settings_are_read(tmp_path: Path) -> None:
    compute = load_compute(write(tmp_path, TEXT))
    assert compute.run.folder == tmp_path / "work"
    assert compute.run.deadline_s == 60.0
    assert compute.run.cache_mb == 1024
    assert (compute.run.device, compute.run.precision) == ("cpu", "float32")
    assert compute.identity.folder == tmp_path / "identity"
    assert compute.peer.party == "clinic"
    assert compute.peer.listen == Address("0.0.0.0", 7000)
    assert compute.model.path is None
    assert compute.policy.file == tmp_path / "policy.toml"


def test_a_model_folder_may_hold_the_weights_already(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    compute = load_compute(write(tmp_path, TEXT + '[model]\npath = "model"\n'))
    assert compute.model.path == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[run]", "[data]\ntrain = 'x'\n[run]", "data is not a key"),
        ('listen = "0.0.0.0:7000"', "", "peer.dial or peer.listen has to be given"),
        ("policy.toml", "gone.toml", "policy.file"),
        ('"work"', '"work"\ncache_mb = 0', "run.cache_mb is 0"),
        (
            '"work"',
            '"work"\ndevice = "gpu"',
            r'run.device is "gpu"; it takes cpu, cuda, or .* cuda:1',
        ),
        ('"work"', '"work"\ndevice = "cuda:100"', "run.device"),
        ('"work"', '"work"\ndevice = "cuda:01"', "run.device"),
        ('"work"', '"work"\nprecision = "fp16"', "run.precision .* it takes float32, or bf16"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    with pytest.raises(ManifestError, match=told):
        load_compute(write(tmp_path, TEXT.replace(old, new)))
