"""pretrain.toml: what the discriminator's party wants pre-trained, and how its rounds go."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from splitlearn.manifest.fields import (
    AddressField,
    Fault,
    FolderField,
    IdentityTable,
    NameField,
    PolicyTable,
    Table,
)
from splitlearn.manifest.pretraining import (
    EncoderTable,
    StepsTable,
    VocabularyTable,
    encoder_faults,
)
from splitlearn.manifest.reading import read

__all__ = ["Pretrain", "load_pretrain"]


class PretrainRunTable(Table):
    name: NameField = Field(
        description="a name of up to 64 letters, digits and ._+-, the first a letter or digit"
    )
    folder: FolderField = Field(description="the folder that gets all this run writes")
    seed: int = Field(
        default=0, ge=0, le=10_000_000, description="a whole number from 0 to 10000000"
    )
    threads: int = Field(
        default=0, ge=0, le=1024, description="processor threads; 0 takes as many as there are"
    )
    processes: int = Field(
        default=1, ge=1, le=1024, description="processes that share each batch, under torchrun"
    )
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda)$", description="cpu or cuda")


class CoordinatorTable(Table):
    address: AddressField = Field(
        description="the coordinator on this machine as host:port, as splitlearn coordinator up "
        "prints it"
    )


class ListenTable(Table):
    """Where generators bring their batches."""

    address: AddressField = Field(description="the address to wait at as host:port")
    advertise: AddressField | None = Field(
        default=None,
        description="the same as generators reach it, as host:port; left out, the address itself",
    )


class BatchTable(Table):
    """What a generator's batches look like."""

    examples: int = Field(default=32, ge=1, le=1_024, description="examples in a batch, 1 to 1024")
    width: int = Field(default=128, ge=8, le=8_192, description="tokens of the longest example")
    masked: float = Field(
        default=0.15, gt=0, lt=1, description="the share of tokens that are masked, as 0.15"
    )


class RoundsTable(Table):
    count: int = Field(ge=1, le=100_000, description="a whole number of rounds")
    steps: int = Field(ge=1, le=1_000_000, description="discriminator steps in one round")
    held_out: int = Field(
        default=8, ge=1, le=1_000, description="held-out batches of each language that score it"
    )
    deadline_s: float = Field(
        default=3_600.0,
        gt=0,
        le=40_000,
        description="seconds after which a round ends, whatever came, up to 40000",
    )
    silence_s: float = Field(
        default=30.0, gt=0, le=3_600, description="seconds that a generator may be silent for"
    )
    gather_s: float = Field(
        default=60.0, ge=0, le=3_600, description="seconds to wait for all that are known"
    )
    least: int = Field(
        default=1, ge=1, le=1_000, description="generators without which none begins"
    )
    buffer: int = Field(
        default=8, ge=1, le=1_024, description="batches of each generator that wait here at most"
    )
    save_every: int = Field(
        default=100, ge=1, le=1_000_000, description="steps between checkpoints"
    )


class MixTable(Table):
    alpha: float = Field(
        default=0.5, ge=0, le=1, description="1 keeps the languages' shares, 0 makes them alike"
    )
    by: Literal["size", "loss"] = Field(
        default="size", description="size (of the text) or loss (of the generator, in each round)"
    )


class Pretrain(Table):
    run: PretrainRunTable
    identity: IdentityTable
    coordinator: CoordinatorTable
    listen: ListenTable
    vocabulary: VocabularyTable
    model: EncoderTable = EncoderTable()
    batch: BatchTable = BatchTable()
    optimiser: StepsTable = StepsTable()
    rounds: RoundsTable
    mix: MixTable = MixTable()
    policy: PolicyTable

    def digest(self, *, vocabulary: str) -> str:
        """SHA-256, hex, of the settings that decide the numbers; runs of one digest resume one another.

        vocabulary: its digest. The number of rounds is none of them: a run may be made longer.
        """
        deciding = self.model_dump(
            mode="json",
            include={
                "run": {"seed", "processes"},
                "model": True,
                "batch": True,
                "optimiser": True,
                "rounds": {"steps"},
                "mix": True,
            },
        )
        text = json.dumps({**deciding, "vocabulary": vocabulary}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def load_pretrain(path: Path | str) -> Pretrain:
    """The job in the file; ManifestError for the first key that is wrong."""
    return read(Path(path), model=Pretrain, faults=_impossible)


def _impossible(job: Pretrain) -> Iterator[Fault]:
    yield from encoder_faults(job.model)
    if job.model.path is None and job.batch.width > job.model.positions:
        yield Fault(
            "batch.width",
            f"is {job.batch.width}, more than model.positions = {job.model.positions}",
        )
    if job.listen.advertise is not None and not job.listen.advertise.port:
        yield Fault("listen.advertise", "has port 0; it takes the port that generators can reach")
    if job.listen.advertise is None and job.listen.address.host in _ANY:
        yield Fault("listen.advertise", "has to be given where listen.address is of all interfaces")


_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
