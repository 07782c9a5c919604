"""What the demo begins with, written for real from the packages, and what it refuses to begin with."""

import json
from pathlib import Path

import pytest

from parties import demo_data
from parties.demo_data import TOPICS, prepare
from splitlearn import policy
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_compute, load_job


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    (folder / "clinic").mkdir(parents=True)
    (folder / "clinic" / "left.txt").write_text("of the demo before")
    prepare(folder, articles=50)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_both_parties_get_files_that_load(out: Path) -> None:
    job, compute = load_job(out / "job.toml"), load_compute(out / "compute.toml")
    assert job.cut.upper.rank == 8
    assert compute.peer.party == "clinic"
    assert job.peer.dial == compute.peer.listen
    assert job.model.path == compute.model.path
    for manifest in (job, compute):
        assert policy.load(manifest.policy.file).rules


def test_no_article_stands_in_two_files(out: Path) -> None:
    train, held_out = (rows(out / "clinic" / f"{name}.jsonl") for name in ("train", "evaluate"))
    public = (out / "clinic" / "public.txt").read_text(encoding="utf-8").splitlines()
    assert [len(part) for part in (train, held_out, public)] == [50, 400, 100]
    assert {row["label"] for row in train} == set(TOPICS)
    assert not {text for text in public if text} & {row["text"] for row in train}


def test_what_lay_there_goes(out: Path) -> None:
    assert not (out / "clinic" / "left.txt").exists()


def test_another_model_than_the_demos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"another")
    with pytest.raises(ManifestError, match="another model than the demo's"):
        demo_data._check_model(tmp_path)
    with pytest.raises(ManifestError, match=r"pip install 'splitlearn\[demo\]'"):
        demo_data._package("no_such_package_anywhere")


def test_an_article_is_one_line_whatever_its_file_is_written_in(tmp_path: Path) -> None:
    (tmp_path / "utf8").write_text("A line.\n\n Another\u00a3 \n", encoding="utf-8")
    (tmp_path / "latin1").write_bytes(b"\xa3 5\nmillion")
    assert demo_data._text(tmp_path / "utf8") == "A line. Another\u00a3"
    assert demo_data._text(tmp_path / "latin1") == "\u00a3 5 million"
