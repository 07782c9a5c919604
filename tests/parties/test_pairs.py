from pathlib import Path

import pytest

from parties.pairs import claim_of, corpus_of, decoder_run, encoder_of
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_decoder, load_encoder
from splitlearn.translation.text import load_tokenizer
from tests.bilingual import Bilingual


def test_a_claim_is_one_jobs_and_its_keys_differ_by_purpose(tmp_path: Path) -> None:
    claim = claim_of(tmp_path / "run", job="a")
    assert claim_of(tmp_path / "run", job="a") == claim
    assert len({claim.key("salt"), claim.key("naming"), claim.secret}) == 3
    assert (tmp_path / "run" / "run.json").stat().st_mode & 0o077 == 0
    with pytest.raises(ManifestError, match="other settings or data"):
        claim_of(tmp_path / "run", job="b")
    (tmp_path / "run" / "run.json").write_text("[]")
    with pytest.raises(ManifestError, match="is not a run's"):
        claim_of(tmp_path / "run", job="a")


def test_settings_become_a_run_whose_terms_tell_no_text(tmp_path: Path) -> None:
    both = Bilingual(tmp_path)
    run = decoder_run(load_decoder(both.decoder))
    assert (run.terms.width, run.terms.trains, run.terms.examples) == (32, True, 32)
    assert run.terms.schedule.name == "inverse_sqrt"
    assert decoder_run(load_decoder(both.decoder)).terms == run.terms
    words = {int(word) for word in run.decoder.words_V}
    assert words == {int(word) for word in run.corpus.train.words()}


def test_held_out_rows_are_other_samples_than_those_to_train_on(tmp_path: Path) -> None:
    settings = load_encoder(Bilingual(tmp_path).encoder)
    corpus = corpus_of(settings.data, tokenizer=load_tokenizer(settings.model.path))
    assert corpus.train.samples[0] == "train/0"
    assert corpus.evaluate.samples[0] == "validation/0"
    assert encoder_of(settings, trains=False, seed=1).trains is False
    data = settings.data.model_copy(update={"max_length": 3})
    with pytest.raises(ManifestError, match=r"at most data\.max_length = 3"):
        corpus_of(data, tokenizer=load_tokenizer(settings.model.path))
