from pathlib import Path

import pytest

from parties.training import Shape, generator_of, ranks_of, vocabulary_of
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_generator, load_pretrain
from splitlearn.pretrain.ranks import Ranks
from tests.babble import WIDTH
from tests.tongues import tongues

SHAPE = Shape(examples=3, width=WIDTH, masked=0.2, seed=4)


def test_a_generator_is_built_as_its_settings_and_the_round_say(tmp_path: Path) -> None:
    settings = load_generator(tongues(tmp_path, {"ana": "aa"}).generators["ana"])
    vocabulary = vocabulary_of(settings)
    trainer = generator_of(
        settings, vocabulary=vocabulary, shape=SHAPE, scratch=tmp_path, ranks=Ranks()
    )
    batch, loss = trainer.step()
    assert len(batch.lengths) == 3
    assert max(batch.lengths) <= WIDTH
    assert loss > 0
    # A generator is not told how long it will be wanted, so its rate does not fall.
    assert trainer.settings.training.schedule == "constant_with_warmup"
    assert trainer.settings.mask == 0.2


def test_text_in_columns_and_pairs_is_read(tmp_path: Path) -> None:
    made = tongues(tmp_path, {"ana": "aa"}).generators["ana"]
    rows = "text\tother\n" + "".join(f"ba be bi {i}\tbo bu {i}\n" for i in range(60))
    (tmp_path / "rows.tsv").write_text(rows)
    text = made.read_text().split("text = ")[0] + f'text = "{tmp_path / "rows.tsv"}"\n'
    rest = made.read_text().split("held_out = ")[1]
    made.write_text(f'{text}pair_column = "other"\nheld_out = {rest}')
    settings = load_generator(made)
    trainer = generator_of(
        settings,
        vocabulary=vocabulary_of(settings),
        shape=SHAPE,
        scratch=tmp_path / "scratch",
        ranks=Ranks(),
    )
    assert trainer.step()[0].ids.size > 0


def test_a_pinned_vocabulary_is_the_only_one(tmp_path: Path) -> None:
    made = tongues(tmp_path, {"ana": "aa"}).job
    made.write_text(
        made.read_text().replace(
            'file = "tokenizer.json"', f'file = "tokenizer.json"\ndigest = "{"a" * 64}"'
        )
    )
    with pytest.raises(ManifestError, match="digest"):
        vocabulary_of(load_pretrain(made))


def test_one_process_needs_nobody_else(tmp_path: Path) -> None:
    made = tongues(tmp_path, {"ana": "aa"})
    with ranks_of(load_pretrain(made.job), file=made.job) as ranks:
        assert (ranks.world, ranks.leads) == (1, True)
