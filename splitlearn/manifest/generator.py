"""generator.toml: what a generator's party needs to know of itself. Rounds come from its discriminator."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from splitlearn.manifest.fields import (
    AddressField,
    Fault,
    FileField,
    FolderField,
    IdentityTable,
    NameField,
    PolicyTable,
    Table,
    TextField,
)
from splitlearn.manifest.pretraining import (
    EncoderTable,
    StepsTable,
    VocabularyTable,
    encoder_faults,
)
from splitlearn.manifest.reading import read

__all__ = ["Generator", "load_generator"]

_COLUMN = "the name of a column"


class GeneratorRunTable(Table):
    folder: FolderField = Field(description="the folder that gets logs, checkpoints and models")
    threads: int = Field(
        default=0, ge=0, le=1024, description="processor threads; 0 takes as many as there are"
    )
    processes: int = Field(
        default=1, ge=1, le=1024, description="processes that share each batch, under torchrun"
    )
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda)$", description="cpu or cuda")
    head_start: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="batches to train on alone before the first round: what a generator that has learnt "
        "nothing puts in is told at a glance",
    )
    save_every: int = Field(
        default=100, ge=1, le=1_000_000, description="batches between checkpoints"
    )


class HubTable(Table):
    """Who coordinates, which is the discriminator's party, and where."""

    address: AddressField = Field(description="the coordinator's address as host:port")
    party: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$",
        description="the discriminator's party name: up to 42 lower-case letters, digits and hyphens",
    )


class TextTable(Table):
    """One language's text. It never leaves; ids made from it do."""

    language: NameField = Field(description="the language's name, as en or zh-Hant")
    text: TextField = Field(
        description="a txt file with one passage a line, a csv, tsv, jsonl or parquet file, or a hub "
        "name as owner/name:config@split"
    )
    column: str = Field(default="text", min_length=1, description=_COLUMN)
    pair_column: str | None = Field(
        default=None, min_length=1, description=f"{_COLUMN} with the translation of each passage"
    )
    held_out: float = Field(
        default=0.05, gt=0, lt=1, description="the share of passages that never train, as 0.05"
    )


class RenamingTable(VocabularyTable):
    """The vocabulary, and whether its ids are renamed before they leave."""

    permutation: FileField | None = Field(
        default=None,
        description="a file with the key by which all generators of a run rename their ids, as "
        "splitlearn vocab key writes it; no protection against counting",
    )


class Generator(Table):
    run: GeneratorRunTable
    identity: IdentityTable
    coordinator: HubTable
    data: TextTable
    vocabulary: RenamingTable
    model: EncoderTable = EncoderTable(width=64, inner=256, embedding=64)
    optimiser: StepsTable = StepsTable()
    policy: PolicyTable


def load_generator(path: Path | str) -> Generator:
    """The settings in the file; ManifestError for the first key that is wrong."""
    return read(Path(path), model=Generator, faults=_impossible)


def _impossible(settings: Generator) -> Iterator[Fault]:
    yield from encoder_faults(settings.model)
    if settings.coordinator.address.port == 0:
        yield Fault(
            "coordinator.address", "has port 0; it takes the port the coordinator listens at"
        )
