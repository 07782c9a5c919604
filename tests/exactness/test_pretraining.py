"""A generator that streams its ids and a discriminator that trains on them are the plain ELECTRA loop."""

from pathlib import Path

import pytest

from splitlearn.engine.streams.rounds import Streamed, Trained
from splitlearn.pretrain.corpus import Corpus
from splitlearn.pretrain.discriminator import DiscriminatorTrainer
from splitlearn.pretrain.generator import GeneratorTrainer
from splitlearn.pretrain.plain import plain_losses
from splitlearn.pretrain.text import open_text
from tests.babble import (
    WIDTH,
    discriminator_settings,
    generator_settings,
    text_file,
    vocabulary,
)
from tests.streaming import Hall, terms

STEPS, SEED, OTHER_SEED = 20, 5, 6


class Source:
    """The trainer as the engine takes it."""

    def __init__(self, trainer: GeneratorTrainer) -> None:
        self._trainer = trainer
        self.size = 1_000

    def __getattr__(self, name: str) -> object:
        return getattr(self._trainer, name)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_discriminator_losses_are_those_of_the_plain_loop_to_the_bit(
    tmp_path: Path, dropout: float
) -> None:
    known, text = vocabulary(), text_file(tmp_path)
    made = generator_settings(text, dropout=dropout)
    judged = discriminator_settings(dropout=dropout)
    generator = GeneratorTrainer.build(made, vocabulary=known, seed=SEED, scratch=tmp_path)
    learner = DiscriminatorTrainer.build(judged, vocabulary=known, seed=OTHER_SEED)
    hall = Hall(tmp_path / "hall")
    wanted = terms(
        steps=STEPS,
        least=1,
        vocabulary=known.size,
        vocabulary_digest=known.digest,
        examples=made.batch,
        width=WIDTH,
        silence_s=20.0,
        deadline_s=120.0,
    )
    engine = hall.discriminator(learner, wanted=wanted)  # type: ignore[arg-type]
    streamed: list[float] = []
    hall.generate(
        "ana",
        "en",
        Source(generator),  # type: ignore[arg-type]
        digest=known.digest,
        watch=lambda event: streamed.append(event.loss) if isinstance(event, Streamed) else None,
    )
    engine.round()
    hall.close()
    assert hall.failures == {}
    losses = [event.loss for event in hall.events if isinstance(event, Trained)]

    corpus = Corpus(
        open_text(made.text, scratch=tmp_path / "plain"),
        vocabulary=known,
        width=made.width,
        batch=made.batch,
        seed=SEED,
        held_out=made.held_out,
    )
    plain = list(
        plain_losses(
            corpus,
            generator=made,
            discriminator=judged,
            seed=SEED,
            discriminator_seed=OTHER_SEED,
            steps=STEPS,
        )
    )
    assert streamed == [mlm for mlm, _ in plain]
    assert losses == [detection for _, detection in plain]
    assert len(set(losses)) == STEPS
