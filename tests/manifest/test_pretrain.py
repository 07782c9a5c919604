from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import Address, load_pretrain

TEXT = """
[run]
name = "tongues"
folder = "work"

[identity]
folder = "identity"

[coordinator]
address = "127.0.0.1:8001"

[listen]
address = "127.0.0.1:7443"

[vocabulary]
file = "tokenizer.json"

[rounds]
count = 2
steps = 100

[policy]
file = "policy.toml"
"""


def write(folder: Path, text: str = TEXT) -> Path:
    for name in ("policy.toml", "tokenizer.json"):
        (folder / name).touch()
    (folder / "pretrain.toml").write_text(text, encoding="utf-8")
    return folder / "pretrain.toml"


def test_a_job_is_read_with_its_defaults(tmp_path: Path) -> None:
    job = load_pretrain(write(tmp_path))
    assert job.run.folder == tmp_path / "work"
    assert job.coordinator.address == Address("127.0.0.1", 8001)
    assert job.listen.advertise is None
    assert (job.batch.examples, job.batch.width, job.batch.masked) == (32, 128, 0.15)
    assert (job.mix.alpha, job.mix.by) == (0.5, "size")
    assert job.optimiser.total_steps is None


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("steps = 100", "step = 100", "did you mean rounds.steps"),
        ("count = 2", "count = 0", "rounds.count is 0"),
        ("[rounds]", "[batch]\nwidth = 600\n[rounds]", "more than model.positions = 512"),
        ("[rounds]", "[model]\nheads = 7\n[rounds]", "does not divide width 256"),
        ("[rounds]", '[mix]\nby = "luck"\n[rounds]', "mix.by"),
        ('"127.0.0.1:7443"', '"0.0.0.0:7443"', "listen.advertise has to be given"),
        (
            '"127.0.0.1:7443"',
            '"127.0.0.1:7443"\nadvertise = "hub.example:0"',
            "advertise has port 0",
        ),
        ("tokenizer.json", "gone.json", "vocabulary.file"),
        ('"tokenizer.json"', '"tokenizer.json"\ndigest = "12"', "vocabulary.digest"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    with pytest.raises(ManifestError, match=told):
        load_pretrain(write(tmp_path, TEXT.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("count = 2", "count = 20", True),
        ("127.0.0.1:7443", "127.0.0.1:7444", True),
        ("steps = 100", "steps = 200", False),
        ("[rounds]", "[mix]\nalpha = 0.3\n[rounds]", False),
        ("[rounds]", "[model]\nlayers = 3\n[rounds]", False),
    ],
)
def test_a_run_may_be_resumed_by_a_job_that_decides_the_same_numbers(
    tmp_path: Path, old: str, new: str, same: bool
) -> None:
    one = load_pretrain(write(tmp_path)).digest(vocabulary="a")
    other = load_pretrain(write(tmp_path, TEXT.replace(old, new))).digest(vocabulary="a")
    assert (one == other) is same
    assert load_pretrain(write(tmp_path)).digest(vocabulary="b") != one
