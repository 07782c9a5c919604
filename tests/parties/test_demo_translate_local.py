from pathlib import Path

from parties.demo_translate_local import baseline
from tests.bilingual import Bilingual


def test_both_baselines_train_and_are_scored(tmp_path: Path) -> None:
    both = Bilingual(tmp_path)
    local = baseline(both.encoder, both.decoder, scratch=False)
    assert (local["steps"], len(local["losses"])) == (6, 6)
    scratch = baseline(both.encoder, both.decoder, scratch=True)
    assert scratch["steps"] == 6
    assert scratch["losses"] != local["losses"]
    assert scratch["seconds"] > 0
