from pathlib import Path

from parties.demo_translate_local import baseline
from tests.bilingual import Bilingual


def test_both_baselines_train_and_are_scored(tmp_path: Path) -> None:
    both = Bilingual(tmp_path)
    local = baseline(both.encoder, both.decoder, until=None)
    assert (local["steps"], len(local["losses"])) == (6, 6)
    trained = tmp_path / "target" / "turned" / "trained"
    assert float(trained.read_text()) > 0
    scratch = baseline(both.encoder, both.decoder, until=trained)
    assert scratch["steps"] > 0
    assert scratch["losses"] != local["losses"]
    assert scratch["seconds"] >= 0
