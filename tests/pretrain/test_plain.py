from pathlib import Path

import pytest

from splitlearn.pretrain.corpus import Corpus
from splitlearn.pretrain.discriminator import DiscriminatorTrainer
from splitlearn.pretrain.generator import GeneratorTrainer
from splitlearn.pretrain.plain import plain_losses
from splitlearn.pretrain.text import open_text
from splitlearn.wire.ids import pack, unpack
from tests.babble import WIDTH, discriminator_settings, generator_settings, text_file, vocabulary

KNOWN = vocabulary()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_trainers_apart_are_the_plain_loop_to_the_bit(tmp_path: Path, dropout: float) -> None:
    settings = generator_settings(text_file(tmp_path), dropout=dropout)
    judging = discriminator_settings(dropout=dropout)
    maker = GeneratorTrainer.build(settings, vocabulary=KNOWN, seed=3, scratch=tmp_path / "a")
    judge = DiscriminatorTrainer.build(judging, vocabulary=KNOWN, seed=4)
    corpus = Corpus(
        open_text(settings.text, scratch=tmp_path / "b"),
        vocabulary=KNOWN,
        width=WIDTH,
        batch=settings.batch,
        seed=3,
        held_out=settings.held_out,
    )
    plain = plain_losses(
        corpus,
        generator=settings,
        discriminator=judging,
        seed=3,
        discriminator_seed=4,
        steps=20,
    )
    apart = []
    for _ in range(20):
        batch, mlm = maker.step()
        parts = pack(batch, vocabulary=KNOWN.size)
        sent = unpack(parts, lengths=batch.lengths, vocabulary=KNOWN.size)
        apart.append((mlm, judge.train(sent).loss))
    assert apart == list(plain)
    assert apart[0] != apart[-1]
