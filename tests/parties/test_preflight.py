"""`splitlearn trusted preflight` as it is typed, and what training makes of its outcome."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from parties import trusted
from parties.cli import app
from parties.exposure import Measured
from parties.preflight import PREFLIGHT, check_preflight, preflight
from splitlearn.audit import Leakage, read_records, verify
from splitlearn.errors import ManifestError, RefusedError
from splitlearn.manifest import load_job
from tests.jobs import Changes, make_clinic

PUBLIC = {"public_text": "public.txt"}
STRICT: Changes = {
    "cut": {"mode": "features"},
    "preflight": PUBLIC,
    "policy": {"file": "strict.toml"},
}


def limited(job: Path, **limits: float) -> Path:
    """The job under a policy of these limits."""
    policy = job.parent / "demo.toml"
    lines = [f"{name} = {limit}" for name, limit in limits.items()]
    text = policy.read_text().replace("[[rules]]", "\n".join(["[leakage]", *lines, "[[rules]]"]), 1)
    policy.write_text(text)
    return job


def test_a_job_that_gives_its_text_away_is_refused_and_on_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_clinic(tmp_path, STRICT)
    with pytest.raises(RefusedError, match="the attacks got tokens of") as refused:
        preflight(job, threads=1, quick=True)
    assert refused.value.rule == "leakage.max_token_recovery"
    assert "a lower bound" in capsys.readouterr().err
    log = job.parent / "run" / "audit"
    (found,) = (r for _, r in read_records(log) if isinstance(r, Leakage))
    assert found.at == "preflight"
    assert found.tokens is not None
    assert found.tokens > 0.5
    assert found.tokens_limit == 0.5
    assert found.labels is None
    report = verify(log)
    assert report.exit == 1, report.findings  # over the limit, and said so
    with pytest.raises(RefusedError, match="the attacks got tokens of"):
        trusted.train(job, threads=1)


def test_without_a_preflight_a_limited_policy_trains_nothing(tmp_path: Path) -> None:
    job = make_clinic(tmp_path, STRICT)
    with pytest.raises(RefusedError, match="run splitlearn trusted preflight") as refused:
        trusted.train(job, threads=1)
    assert refused.value.rule == "leakage.preflight"
    assert not (job.parent / "run").exists()


def test_a_job_within_the_limits_may_train_until_it_changes(tmp_path: Path) -> None:
    job = limited(make_clinic(tmp_path, {"preflight": PUBLIC}), max_token_recovery=1.0)
    manifest = load_job(job)
    preflight(job, threads=1, quick=True)
    with pytest.raises(RefusedError, match="no whole preflight"):
        check_preflight(manifest)
    preflight(job, threads=1, quick=False)
    check_preflight(manifest)
    figures = msgspec.json.decode((manifest.run.folder / PREFLIGHT).read_bytes(), type=Measured)
    assert figures.job == manifest.digest()
    assert figures.tokens is not None
    assert figures.label_auc is not None
    assert figures.label_auc > 0.9
    for changes in ({"cut": {"bottom": 2}}, {"codec": {"activation": "fp16"}}):
        other = make_clinic(tmp_path, {**changes, "preflight": PUBLIC})
        with pytest.raises(RefusedError, match="no whole preflight of this very job"):
            check_preflight(load_job(limited(other, max_token_recovery=1.0)))


def test_a_preflight_that_was_edited_or_is_of_other_inputs_opens_nothing(tmp_path: Path) -> None:
    job = limited(make_clinic(tmp_path, {"preflight": PUBLIC}), max_token_recovery=1.0)
    preflight(job, threads=1, quick=False)
    path = job.parent / "run" / PREFLIGHT
    written = path.read_bytes()
    path.write_bytes(written + b"\n")
    with pytest.raises(RefusedError, match="no whole preflight"):
        check_preflight(load_job(job))
    path.write_bytes(written)
    check_preflight(load_job(job))
    train = job.parent / "train.jsonl"
    train.write_text(train.read_text().replace("film", "story"))
    with pytest.raises(RefusedError, match="no whole preflight"):
        check_preflight(load_job(job))


def test_labels_that_can_be_ranked_are_refused_where_the_policy_limits_it(tmp_path: Path) -> None:
    job = limited(make_clinic(tmp_path, {"preflight": PUBLIC}), max_label_auc=0.7)
    with pytest.raises(RefusedError, match="the attacks got label ranking of") as refused:
        preflight(job, threads=1, quick=True)
    assert refused.value.rule == "leakage.max_label_auc"


def test_a_broken_file_is_no_preflight(tmp_path: Path) -> None:
    job = limited(make_clinic(tmp_path), max_token_recovery=1.0)
    (job.parent / "run").mkdir()
    (job.parent / "run" / PREFLIGHT).write_text('{"version": 1}')
    with pytest.raises(RefusedError, match="no whole preflight of this very job"):
        check_preflight(load_job(job))


def test_without_public_text_it_says_which_key_to_give(tmp_path: Path) -> None:
    job = make_clinic(tmp_path)
    with pytest.raises(ManifestError, match=r"preflight\.public_text is missing"):
        preflight(job, threads=1, quick=True)


def test_its_help_teaches() -> None:
    done = CliRunner().invoke(app, ["trusted", "preflight", "--help"])
    assert "splitlearn trusted preflight job.toml" in done.output
    assert "Nothing is sent" in done.output
