"""The decoder party's commands: train to a score, translate again, go on from a checkpoint."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from parties import auditor, decoder
from parties.auditor import judge_of
from parties.decoder import METRICS, TRANSLATIONS, PairMetrics
from splitlearn import audit
from splitlearn.errors import ManifestError
from tests.bilingual import Bilingual


def metrics(folder: Path) -> PairMetrics:
    return msgspec.json.decode((folder / METRICS).read_bytes(), type=PairMetrics)


def test_a_run_leaves_translations_a_score_and_a_log_that_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, run = Bilingual(tmp_path), tmp_path / "target" / "turned"
    with both.serving(runs=2):
        decoder.train(both.decoder, threads=1)
        found = metrics(run)
        assert len(found.losses) == 6
        assert found.samples == {"train": 30, "evaluate": 5}
        assert found.received["activation"] > found.sent["want"] > 0
        assert found.channel_sent > sum(found.sent.values())
        lines = (run / TRANSLATIONS).read_text().splitlines()
        assert len(lines) == 5
        capsys.readouterr()
        decoder.translate(both.decoder, threads=1)
    said = capsys.readouterr()
    assert said.out.splitlines() == lines
    assert f"BLEU {found.bleu:.2f}" in said.err
    shown = CliRunner().invoke(auditor.app, ["show", str(run / "audit")]).output
    assert "party/source/role/encoder, full, an encoder's rows" in shown
    page = tmp_path / "report.html"
    done = CliRunner().invoke(auditor.app, ["report", str(run / "audit"), "-o", str(page)])
    assert done.exit_code == 0
    assert "whoever owns that encoder can turn rows back into text" in page.read_text()
    logs = (run / "audit", tmp_path / "source" / "run" / "target-turned" / "audit")
    assert audit.reconcile(*logs, judge_of=judge_of).exit == audit.Exit.CLEAN


def test_a_longer_schedule_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    both, run = Bilingual(tmp_path), tmp_path / "target" / "turned"
    with both.serving(runs=2):
        decoder.train(both.decoder, threads=1)
        first = metrics(run).losses
        decoder.train(both.decoding(steps=9), threads=1)
    found = metrics(run)
    assert found.losses[:6] == first
    assert (len(found.losses), found.steps) == (9, 3)


def test_a_folder_of_another_run_and_one_without_checkpoints_are_refused(tmp_path: Path) -> None:
    both = Bilingual(tmp_path)
    with pytest.raises(ManifestError, match="holds no checkpoint"):
        decoder.translate(both.decoder, threads=1)
    with both.serving():
        decoder.train(both.decoder, threads=1)
    with pytest.raises(ManifestError, match="holds a run of other settings or data"):
        decoder.train(both.decoding(codec="fp16"), threads=1)
