"""From settings files to the trainers of a pre-training run, and the further processes that share a batch.

What a party's first process builds its followers build, too, from the same settings: so only a few
numbers have to be told to them.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from splitlearn.manifest import Generator, Pretrain
    from splitlearn.manifest.pretraining import EncoderTable, StepsTable
    from splitlearn.pretrain.discriminator import DiscriminatorTrainer
    from splitlearn.pretrain.generator import GeneratorTrainer
    from splitlearn.pretrain.ranks import Ranks
    from splitlearn.pretrain.settings import ModelSettings, TrainingSettings
    from splitlearn.pretrain.vocabulary import Vocabulary

Settings = TypeVar("Settings", "Generator", "Pretrain")

__all__ = [
    "Shape",
    "discriminator_of",
    "generator_of",
    "main",
    "ranks_of",
    "shared",
    "vocabulary_of",
]

# A rate that never falls has no last step, and transformers wants one.
_FOR_EVER = 10_000_000


class Shape(msgspec.Struct, frozen=True):
    """What a round says of a generator's batches; see `wire.messages.Round`."""

    examples: int
    width: int
    masked: float
    seed: int


def vocabulary_of(settings: "Generator | Pretrain") -> "Vocabulary":
    """The vocabulary, with the digest that was pinned. Raises ManifestError."""
    from splitlearn.pretrain.vocabulary import load_vocabulary

    return load_vocabulary(settings.vocabulary.file, digest=settings.vocabulary.digest)


def shared(settings: "Settings", *, processes: int) -> "Settings":
    """The same settings with a batch shared by so many processes; 0: as they say themselves."""
    if not processes:
        return settings
    run = settings.run.model_copy(update={"processes": processes})
    return settings.model_copy(update={"run": run})


def discriminator_of(
    job: "Pretrain", *, vocabulary: "Vocabulary", ranks: "Ranks"
) -> "DiscriminatorTrainer":
    """The discriminator's trainer at its beginning. Raises ManifestError."""
    from splitlearn.pretrain.discriminator import DiscriminatorTrainer
    from splitlearn.pretrain.settings import DiscriminatorSettings

    whole = job.rounds.count * job.rounds.steps
    settings = DiscriminatorSettings(
        model=_model(job.model), training=_training(job.optimiser, total_steps=whole)
    )
    return DiscriminatorTrainer.build(
        settings, vocabulary=vocabulary, seed=job.run.seed, ranks=ranks
    )


def generator_of(
    settings: "Generator",
    *,
    vocabulary: "Vocabulary",
    shape: Shape,
    scratch: Path,
    ranks: "Ranks",
) -> "GeneratorTrainer":
    """The generator's trainer at its beginning, for batches of a round's shape. Raises ManifestError."""
    from splitlearn.pretrain.generator import GeneratorTrainer
    from splitlearn.pretrain.settings import GeneratorSettings
    from splitlearn.pretrain.text import TextSettings

    return GeneratorTrainer.build(
        GeneratorSettings(
            text=TextSettings(
                source=settings.data.text,
                column=settings.data.column,
                pair_column=settings.data.pair_column,
            ),
            training=_training(settings.optimiser, total_steps=None),
            model=_model(settings.model),
            width=shape.width,
            batch=shape.examples,
            mask=shape.masked,
            held_out=settings.data.held_out,
        ),
        vocabulary=vocabulary,
        seed=shape.seed,
        scratch=scratch,
        ranks=ranks,
    )


@contextmanager
def ranks_of(
    settings: "Generator | Pretrain", *, file: Path, shape: Shape | None = None
) -> Iterator["Ranks"]:
    """This process as the first of `run.processes`, and the others started beside it.

    file: what the settings were read from; shape: of a generator's batches.
    """
    from splitlearn.engine.state.threads import use_threads
    from splitlearn.pretrain.ranks import Ranks

    use_threads(settings.run.threads)
    world = settings.run.processes
    if world == 1:
        yield Ranks(device=settings.run.device)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
    }
    told = "" if shape is None else msgspec.json.encode(shape).decode()
    followers = [
        subprocess.Popen(  # noqa: S603 - our own module, with words of our own
            [sys.executable, "-m", "parties.training", str(file), told],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(1, world)
    ]
    before = {name: os.environ.get(name) for name in (*meeting, "RANK", "LOCAL_RANK")}
    os.environ.update({**meeting, "RANK": "0", "LOCAL_RANK": "0"})
    try:
        yield Ranks.found(device=settings.run.device)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for follower in followers:
            try:
                follower.wait(timeout=_PARTING_S)
            except subprocess.TimeoutExpired:
                follower.kill()
                follower.wait()


# Seconds that a follower has to end after it was let go.
_PARTING_S = 20.0


def main(words: list[str]) -> None:
    """A follower's whole life: build what the first process builds, and do as it does."""
    import tempfile

    from splitlearn.engine.state.threads import use_threads
    from splitlearn.manifest import load_generator, load_pretrain
    from splitlearn.pretrain.ranks import Ranks

    file, told = Path(words[0]), words[1]
    if not told:
        job = load_pretrain(file)
        use_threads(job.run.threads)
        ranks = Ranks.found(device=job.run.device)
        discriminator_of(job, vocabulary=vocabulary_of(job), ranks=ranks).follow()
        return
    settings = load_generator(file)
    use_threads(settings.run.threads)
    ranks = Ranks.found(device=settings.run.device)
    with tempfile.TemporaryDirectory(prefix="splitlearn-") as scratch:
        generator_of(
            settings,
            vocabulary=vocabulary_of(settings),
            shape=msgspec.json.decode(told, type=Shape),
            scratch=Path(scratch),
            ranks=ranks,
        ).follow()


def _model(table: "EncoderTable") -> "ModelSettings":
    from splitlearn.pretrain.settings import ModelSettings

    return ModelSettings(**table.model_dump())


def _training(table: "StepsTable", *, total_steps: int | None) -> "TrainingSettings":
    from splitlearn.pretrain.settings import TrainingSettings

    values = table.model_dump()
    wanted = table.total_steps or total_steps
    if wanted is None:
        values["schedule"] = "constant_with_warmup"
    values["total_steps"] = wanted or _FOR_EVER
    return TrainingSettings(**values)


if __name__ == "__main__":
    main(sys.argv[1:])
