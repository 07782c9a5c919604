from pathlib import Path

import pytest

from splitlearn.coordination.places import JobPlaces, NodePlaces, job_places, node_places
from splitlearn.errors import ManifestError

NODE = """
[identity]
folder = "keys"
[coordinator]
address = "trainer.example:8471"
[text]
anything = ["may", "stand", "here"]
"""


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[run]\nfolder = "run"\n[coordinator]\naddress = "127.0.0.1:1"\n')
    assert job_places(job) == JobPlaces(folder=tmp_path / "run", address="127.0.0.1:1")
    node = tmp_path / "generator.toml"
    node.write_text(NODE)
    expected = NodePlaces(identity=tmp_path / "keys", address="trainer.example:8471", party=None)
    assert node_places(node) == expected
    node.write_text(NODE.replace("[text]", 'party = "trainer"\n[text]'))
    assert node_places(node).party == "trainer"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "coordinator.address is missing"),
        ("coordinator = 3", "coordinator.address is missing"),
        ("[coordinator]\naddress = 5", "coordinator.address is missing"),
        ("[coordinator]\naddress = 'here'", "expected HOST:PORT"),
        ("[coordinator]\naddress = 'h:1'", "identity.folder is missing"),
        ("[coordinator]\naddress = 'h:1'\nparty = 1\n", "coordinator.party is missing"),
        ("= 1", "not TOML"),
        ("#" * 2**19, "larger than"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "generator.toml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=why):
        node_places(path)


def test_a_job_without_a_folder_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        job_places(tmp_path / "none.toml")
    (tmp_path / "job.toml").write_text("[coordinator]\naddress = 'h:1'\n")
    with pytest.raises(ManifestError, match=r"run\.folder is missing"):
        job_places(tmp_path / "job.toml")
