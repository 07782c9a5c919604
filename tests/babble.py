"""Made-up languages with a grammar that a small model can learn, and settings that train on them."""

import random
from functools import cache
from pathlib import Path

from splitlearn.pretrain.counts import count, merge
from splitlearn.pretrain.settings import (
    DiscriminatorSettings,
    GeneratorSettings,
    ModelSettings,
    TrainingSettings,
)
from splitlearn.pretrain.text import TextSettings, text_source
from splitlearn.pretrain.vocabulary import Vocabulary, train_vocabulary

WIDTH = 24


def lines(number: int, *, seed: int = 0) -> list[str]:
    """Sentences of three to six words; each word says which may follow."""
    rng = random.Random(f"babble {seed}")
    syllables = [a + b for a in "bdgklmnprst" for b in "aeiou"]
    words = ["".join(rng.sample(syllables, 2)) for _ in range(60)]
    follows = {word: rng.sample(words, 3) for word in words}
    found = []
    for _ in range(number):
        sentence = [rng.choice(words)]
        while len(sentence) < rng.randint(3, 6):
            sentence.append(rng.choice(follows[sentence[-1]]))
        found.append(" ".join(sentence) + ".")
    return found


@cache
def vocabulary() -> Vocabulary:
    """About 200 ids."""
    counts = count([*lines(300), *lines(300, seed=1)], minimum=2)
    return train_vocabulary(merge([counts], total=20_000), size=200, kind="bpe")


def text_file(folder: Path, *, number: int = 300, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"language-{seed}.txt"
    path.write_text("\n".join(lines(number, seed=seed)) + "\n", encoding="utf-8")
    return path


def generator_settings(
    text: Path, *, dropout: float = 0.1, batch: int = 4, learning_rate: float = 3e-3
) -> GeneratorSettings:
    return GeneratorSettings(
        text=TextSettings(source=text_source(text)),
        training=training(learning_rate),
        model=model(16, dropout=dropout),
        width=WIDTH,
        batch=batch,
        held_out=0.1,
    )


def discriminator_settings(
    *, dropout: float = 0.1, learning_rate: float = 3e-3
) -> DiscriminatorSettings:
    return DiscriminatorSettings(training=training(learning_rate), model=model(32, dropout=dropout))


def training(learning_rate: float = 3e-3) -> TrainingSettings:
    return TrainingSettings(total_steps=200, learning_rate=learning_rate, warmup_steps=4)


def model(width: int, *, dropout: float = 0.1) -> ModelSettings:
    return ModelSettings(
        layers=1,
        width=width,
        heads=2,
        inner=2 * width,
        embedding=16,
        positions=WIDTH,
        dropout=dropout,
    )
