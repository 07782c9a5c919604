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


NEIGHBOUR = '[[neighbour]]\nparty = "{}"\n{}\n'


def test_neighbours_are_named_with_how_they_are_reached(tmp_path: Path) -> None:
    more = NEIGHBOUR.format("farm", 'dial = "farm:7001"') + NEIGHBOUR.format(
        "barn", 'listen = "0.0.0.0:7002"'
    )
    compute = load_compute(write(tmp_path, TEXT + more))
    assert [table.party for table in compute.neighbour] == ["farm", "barn"]
    assert compute.neighbour[0].dial == Address("farm", 7001)
    assert load_compute(write(tmp_path, TEXT)).neighbour == ()


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([("farm", "")], "neighbour.dial or neighbour.listen has to be given"),
        ([("farm", 'dial = "f:1"')] * 2, "neighbour.party is farm twice"),
        ([("farm", 'dial = "f:0"')], "neighbour.dial has port 0"),
        ([("farm", 'listen = "0.0.0.0:7000"')], "neighbour.listen is 0.0.0.0:7000, where we wait"),
        (
            [("farm", 'listen = "h:1"'), ("barn", 'listen = "h:1"')],
            "neighbour.listen is h:1, where we wait",
        ),
    ],
)
def test_neighbours_that_make_no_sense_are_told(
    tmp_path: Path, tables: list[tuple[str, str]], told: str
) -> None:
    more = "".join(NEIGHBOUR.format(*table) for table in tables)
    with pytest.raises(ManifestError, match=told):
        load_compute(write(tmp_path, TEXT + more))


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
