"""The demo's sizes go together: a vocabulary of its lines, models that take its examples."""

from pathlib import Path

import numpy as np

from parties import demo_pretrain_data as sizes
from parties.demo_lines import write_lines
from splitlearn.pretrain.counts import count, merge
from splitlearn.pretrain.discriminator import DiscriminatorTrainer
from splitlearn.pretrain.generator import GeneratorTrainer
from splitlearn.pretrain.settings import DiscriminatorSettings, GeneratorSettings
from splitlearn.pretrain.text import TextSettings
from splitlearn.pretrain.vocabulary import train_vocabulary


def test_a_step_of_the_demo_can_be_done(tmp_path: Path) -> None:
    lines = write_lines(tmp_path)
    counts = [
        count(path.read_text(encoding="utf-8").splitlines(), minimum=sizes.MIN_COUNT)
        for path in lines.values()
    ]
    vocabulary = train_vocabulary(merge(counts), size=sizes.VOCABULARY, kind="bpe")
    generator = GeneratorTrainer.build(
        GeneratorSettings(
            text=TextSettings(source=str(lines["uk"]), form="txt"),
            training=sizes.generator_training(languages=len(lines)),
            model=sizes.GENERATOR,
            width=sizes.WIDTH,
            batch=sizes.BATCH,
            held_out=sizes.HELD_OUT,
        ),
        vocabulary=vocabulary,
        seed=1,
        scratch=tmp_path / "scratch",
    )
    judge = DiscriminatorTrainer.build(
        DiscriminatorSettings(training=sizes.DISCRIMINATOR_TRAINING, model=sizes.DISCRIMINATOR),
        vocabulary=vocabulary,
        seed=2,
    )
    batch, loss = generator.step()
    assert judge.train(batch).tokens == len(batch.ids) <= sizes.WIDTH * sizes.BATCH
    assert loss < 1.2 * np.log(vocabulary.size)
    assert vocabulary.unk not in batch.ids or (batch.ids == vocabulary.unk).mean() < 0.02
    assert sizes.generator_training(languages=10**6).total_steps == 1
