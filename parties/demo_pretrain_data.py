"""The sizes that the pre-training demo and its benchmark train with. No torch."""

from splitlearn.pretrain.settings import ModelSettings, TrainingSettings

__all__ = [
    "ALPHA",
    "BATCH",
    "DISCRIMINATOR",
    "DISCRIMINATOR_TRAINING",
    "GENERATOR",
    "HELD_OUT",
    "MIN_COUNT",
    "STEPS",
    "VOCABULARY",
    "WIDTH",
    "generator_training",
]

# Ids: three alphabets, and the words that small texts have often enough to be learnt.
VOCABULARY, MIN_COUNT = 400, 10
# Ids an example has, and examples a batch. Short ones: attention that is uniform at first dilutes a
# token's neighbour by the width, and with 32 or more nothing is learnt in the demo's minutes.
WIDTH, BATCH = 16, 32
HELD_OUT, ALPHA = 0.1, 0.3
# Of the discriminator, in all rounds.
STEPS = 4800

GENERATOR = ModelSettings(
    layers=1,
    width=32,
    heads=1,
    inner=128,
    embedding=64,
    positions=WIDTH,
    dropout=0.0,
    spread=0.03,
)
DISCRIMINATOR = ModelSettings(
    layers=1,
    width=128,
    heads=4,
    inner=512,
    embedding=64,
    positions=WIDTH,
    dropout=0.0,
    spread=0.1,
)
DISCRIMINATOR_TRAINING = TrainingSettings(total_steps=STEPS, learning_rate=2e-3, warmup_steps=100)


def generator_training(*, languages: int) -> TrainingSettings:
    """Of one generator among so many: its share of the steps."""
    return TrainingSettings(
        total_steps=max(1, STEPS // languages), learning_rate=3e-4, warmup_steps=50
    )
