"""The encoder party's command over real TLS, and what it keeps."""

from pathlib import Path

import pytest

from parties import decoder, encoder
from parties.auditor import judge_of
from splitlearn import audit
from splitlearn.errors import ManifestError
from tests.bilingual import Bilingual


def test_two_runs_are_served_and_nothing_of_the_other_side_stays(tmp_path: Path) -> None:
    both = Bilingual(tmp_path)
    with both.serving(runs=2):
        decoder.train(both.decoder, threads=1)
        decoder.train(both.decoding(name="other", codec="int8", trains=False), threads=1)
    place = tmp_path / "source" / "run"
    for name in ("turned", "other"):
        assert audit.verify(place / f"target-{name}" / "audit", judge_of=judge_of).ok
    assert (place / "target-turned" / "checkpoints").exists()
    assert not (place / "target-other" / "checkpoints").exists()  # stood still
    target = (tmp_path / "target" / "train.txt").read_text().splitlines()[0].encode()
    for file in place.rglob("*"):
        assert not file.is_file() or target not in file.read_bytes()


def test_settings_that_will_not_do_are_named_before_it_listens(tmp_path: Path) -> None:
    both = Bilingual(tmp_path)
    text = both.encoder.read_text()
    for old, new, says in (
        ("max_length = 16", "max_length = 4", r"data\.max_length is 4"),
        ('path = "model"', 'path = "source"', "cannot be loaded"),
        ("source/policy.toml", "none.toml", r"policy\.file"),
    ):
        both.encoder.write_text(text.replace(old, new))
        with pytest.raises(ManifestError, match=says):
            encoder.serve(both.encoder)
