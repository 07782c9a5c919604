"""`splitlearn audit attack` on the log of a real run between two parties."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from parties import trusted
from parties.cli import app
from parties.exposure import Measured
from splitlearn.audit import Leakage, read_records
from tests.jobs import gpuhost, make_clinic


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clinic's folder after a run with canaries."""
    folder = tmp_path_factory.mktemp("run")
    job = make_clinic(folder, {"canary": {"file": "canary.jsonl", "rate": 0.3}})
    with gpuhost(folder, job):
        trusted.train(job, threads=1)
    return job.parent


def attack(clinic: Path, *more: str, log: str = "audit") -> tuple[int, str]:
    command = ["audit", "attack", str(clinic / "run" / log), "--quick"]
    command += ["--model", str(clinic / "model"), "--public-text", str(clinic / "public.txt")]
    done = CliRunner().invoke(app, [*command, *more])
    said = str(done.exception) if done.exception else ""
    return done.exit_code, done.output + said


def test_it_says_what_was_recovered_and_writes_all_figures(clinic: Path, tmp_path: Path) -> None:
    code, said = attack(clinic, "--to", str(tmp_path / "leakage.json"))
    assert code == 0, said
    assert "a lower bound" in said
    figures = msgspec.json.decode((tmp_path / "leakage.json").read_bytes(), type=Measured)
    assert figures.at == "canary"
    assert figures.tokens is not None
    assert figures.tokens > 0.9
    assert figures.label_auc is not None
    assert figures.label_auc > 0.9
    assert {one.name for one in figures.text_baselines}


def test_another_organisation_needs_the_key_of_the_frames(clinic: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(clinic / "run" / "audit", copy / "run" / "audit")
    for name in ("model", "public.txt"):
        (copy / name).symlink_to(clinic / name)
    key = tmp_path / "blobs.key"
    (copy / "run" / "audit" / "blobs.key").rename(key)
    code, said = attack(copy)
    assert code != 0
    assert "ask the log's owner for the run key" in said
    code, said = attack(copy, "--blob-key", str(key))
    assert code == 0, said


def test_the_owner_may_put_the_outcome_on_record(clinic: Path, tmp_path: Path) -> None:
    owner = tmp_path / "owner"
    shutil.copytree(clinic, owner)
    code, said = attack(owner, "--identity", str(clinic.parent / "clinic-trusted"))
    assert code == 0, said
    log = owner / "run" / "audit"
    (found,) = (r for _, r in read_records(log) if isinstance(r, Leakage))
    assert (found.at, found.run) == ("canary", "films")
    assert json.loads((log / "canary" / "leakage.json").read_text())["at"] == "canary"
    verdict = CliRunner().invoke(app, ["audit", "verify", str(log)])
    assert verdict.exit_code == 0, verdict.output


def test_what_each_party_of_a_chain_was_sent_is_attacked_in_its_own_log(tmp_path: Path) -> None:
    job = make_clinic(
        tmp_path,
        {
            "canary": {"file": "canary.jsonl", "rate": 0.3},
            "[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 2},
        },
    )
    with gpuhost(tmp_path, job), gpuhost(tmp_path, job, party="farm", nowhere=2):
        trusted.train(job, threads=1)
    for log in ("audit", "audit-farm"):
        code, said = attack(job.parent, "--to", str(tmp_path / f"{log}.json"), log=log)
        assert code == 0, said
        figures = msgspec.json.decode((tmp_path / f"{log}.json").read_bytes(), type=Measured)
        assert figures.tokens is not None
        assert figures.tokens > 0.9
        assert figures.label_auc is not None
        assert figures.label_auc > 0.9


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--model", "nowhere", "cannot be loaded"),
        ("--public-text", "nowhere", "No such file"),
    ],
)
def test_a_wrong_option_is_told_in_one_sentence(
    clinic: Path, option: str, value: str, sentence: str
) -> None:
    code, said = attack(clinic, option, value)
    assert code != 0
    assert sentence in said
    assert "Traceback" not in said
