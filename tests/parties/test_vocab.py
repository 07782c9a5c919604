"""`splitlearn vocab` as the parties of a pre-training run it."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties.vocab import app
from splitlearn.errors import ManifestError
from splitlearn.pretrain.permutation import read_key
from splitlearn.pretrain.vocabulary import load_vocabulary
from tests.babble import lines

ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_two_parties_make_a_vocabulary_without_each_others_text(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        texts = [*lines(200, seed=seed), f"secret{name}"]
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"body": text}) + "\n" for text in texts)
        )
        counts = str(tmp_path / f"{name}.json")
        told = run("count", str(tmp_path / f"{name}.jsonl"), "-o", counts, "--column", "body")
        assert "pieces" in told
        assert "secret" not in (tmp_path / f"{name}.json").read_text(encoding="utf-8")
    both = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    told = run("train", *both, "-o", str(tmp_path / "tokenizer.json"), "--size", "150")
    vocabulary = load_vocabulary(tmp_path / "tokenizer.json")
    assert vocabulary.digest in told
    assert vocabulary.size <= 150
    again = run("train", *both, "-o", str(tmp_path / "again.json"), "--size", "150")
    assert vocabulary.digest in again
    shown = run("show", str(tmp_path / "tokenizer.json"), "--text", lines(1)[0])
    assert vocabulary.digest in shown
    assert "8 bits each on the wire" in shown
    assert "pieces   ▁" in shown


def test_plain_text_is_counted_and_a_lower_count_shows_more(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("well well well\nonce\n")
    totals = []
    for minimum in ("3", "1"):
        run("count", str(tmp_path / "text.txt"), "-o", str(tmp_path / "c"), "--min-count", minimum)
        totals.append(json.loads((tmp_path / "c").read_text())["pieces"])
    assert totals[0] == {"▁well": 3}
    assert totals[1] == {"▁well": 3, "▁once": 1}


def test_a_key_is_its_owners(tmp_path: Path) -> None:
    assert "owner" in run("key", "-o", str(tmp_path / "key"))
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert len(read_key(tmp_path / "key")) == 32


def test_what_is_no_counts_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text("{}")
    with pytest.raises(ManifestError, match="no counts file"):
        run("train", str(tmp_path / "counts.json"), "-o", str(tmp_path / "tokenizer.json"))
    assert not (tmp_path / "tokenizer.json").exists()


def test_every_command_teaches_by_an_example() -> None:
    for command in ("count", "train", "show", "key"):
        assert f"splitlearn vocab {command} " in " ".join(run(command, "--help").split())


def test_training_a_vocabulary_loads_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, splitlearn.pretrain.vocabulary, splitlearn.pretrain.counts, splitlearn.pretrain, "
        "parties.vocab; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
