"""encoder.toml and decoder.toml: what the two owners of a translation model's halves need to know."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from splitlearn.manifest.chains import links, needs_basis, remembers
from splitlearn.manifest.fields import (
    CodecField,
    Fault,
    FolderField,
    IdentityTable,
    ModelField,
    NameField,
    PeerTable,
    PolicyTable,
    Table,
    TextField,
    peer_faults,
)
from splitlearn.manifest.reading import read

__all__ = ["Decoder", "Encoder", "SideTable", "load_decoder", "load_encoder"]

_SOURCE = (
    "a txt file with one text a line, a csv, tsv, jsonl or parquet file, or a hub name as "
    "owner/name:config@split"
)
_FIRST = "a whole number of rows from the beginning; left out, all"


class SideTable(Table):
    """One side of the sentence pairs. Texts never leave; keyed hashes of their ids do."""

    train: TextField = Field(description=_SOURCE)
    evaluate: TextField = Field(description=_SOURCE)
    text: str = Field(default="text", min_length=1, description="the name of a column")
    id: str | None = Field(
        default=None,
        min_length=1,
        description="the name of the column with an id that both sides have; left out, the row's number",
    )
    first: int | None = Field(default=None, ge=1, le=10_000_000, description=_FIRST)
    first_evaluate: int | None = Field(default=None, ge=1, le=10_000_000, description=_FIRST)
    max_length: int = Field(
        default=128,
        ge=8,
        le=1_023,
        description="pieces of the longest text that takes part, from 8 to 1023; longer ones are left out",
    )


class PairModelTable(Table):
    path: ModelField = Field(description="a folder with an encoder of type bert, or a hub name")


class EncoderRunTable(Table):
    folder: FolderField = Field(description="the folder that gets logs and checkpoints")
    deadline_s: float = Field(
        default=120.0, gt=0, le=86_400, description="seconds to wait for the peer, up to 86400"
    )


class EncoderAdaptersTable(Table):
    inner: int = Field(default=256, ge=1, le=65_536, description="numbers inside an adapter")


class Encoder(Table):
    """What an encoder party needs to know of itself. Terms come from its peer."""

    run: EncoderRunTable
    identity: IdentityTable
    peer: PeerTable
    model: PairModelTable
    data: SideTable
    adapters: EncoderAdaptersTable = EncoderAdaptersTable()
    policy: PolicyTable


class DecoderRunTable(EncoderRunTable):
    name: NameField = Field(
        description="a name of up to 64 letters, digits and ._+-, the first a letter or digit"
    )
    seed: int = Field(
        default=0, ge=0, le=10_000_000, description="a whole number from 0 to 10000000"
    )


class DecoderAdaptersTable(Table):
    inner: int = Field(default=768, ge=1, le=65_536, description="numbers inside an adapter")
    reach: int = Field(
        default=24,
        ge=1,
        le=512,
        description="pieces that a target may be longer or shorter than its source, from 1 to 512",
    )
    encoder_trains: bool = Field(
        default=True,
        description="true: gradients go back; false: the encoder stands still, and its rows are kept",
    )
    cache_mb: int = Field(
        default=1024, ge=1, le=1_048_576, description="a whole number of MiB for rows that are kept"
    )


class PairCodecTable(Table):
    activation: CodecField = Field(default="int8+zstd", description="a codec as in job.toml")
    gradient: CodecField = Field(default="int8+zstd", description="a codec as in job.toml")


class PairOptimiserTable(Table):
    """Adam. warmup_steps: of the schedule. smoothing: of labels. length: weight of its loss."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1e3, description="a number above 0")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="a number from 0 to below 1")
    beta2: float = Field(default=0.98, ge=0, lt=1, description="a number from 0 to below 1")
    epsilon: float = Field(default=1e-8, gt=0, le=1, description="a number above 0, up to 1")
    warmup_steps: int = Field(
        default=200, ge=1, le=10_000_000, description="a whole number of steps from 1 up"
    )
    smoothing: float = Field(default=0.1, ge=0, lt=1, description="a number from 0 to below 1")
    length: float = Field(default=0.1, ge=0, le=100, description="a number from 0 up")


class PairScheduleTable(Table):
    """name: how the learning rate goes after the warm-up; "linear" and "cosine" come to 0 at the end."""

    name: Literal["inverse_sqrt", "constant", "linear", "cosine"] = Field(
        default="inverse_sqrt", description="inverse_sqrt, constant, linear or cosine"
    )
    steps: int = Field(ge=1, le=10_000_000, description="a whole number of steps from 1 up")
    batch_size: int = Field(
        default=32, ge=1, le=1_024, description="a whole number of examples, from 1 to 1024"
    )
    save_every: int = Field(
        default=100, ge=1, le=10_000_000, description="a whole number of steps from 1 up"
    )


class DecodingTable(Table):
    iterations: int = Field(default=10, ge=1, le=100, description="a whole number from 1 to 100")
    candidates: int = Field(
        default=3, ge=1, le=16, description="lengths that are tried of each text, from 1 to 16"
    )


class Decoder(Table):
    """What a decoder party wants trained, and with whom."""

    run: DecoderRunTable
    identity: IdentityTable
    peer: PeerTable
    model: PairModelTable
    data: SideTable
    adapters: DecoderAdaptersTable = DecoderAdaptersTable()
    codec: PairCodecTable = PairCodecTable()
    optimiser: PairOptimiserTable = PairOptimiserTable()
    schedule: PairScheduleTable
    decoding: DecodingTable = DecodingTable()
    policy: PolicyTable

    def digest(self, *, corpus: str) -> str:
        """SHA-256, hex, of what decides the numbers; runs of one digest resume one another.

        corpus: digest of this side's samples. Steps are part of it where the learning rate comes to its end
        with them, and no part elsewhere: such a run may be made longer.
        """
        ends = self.schedule.name in ("linear", "cosine")
        deciding = self.model_dump(
            mode="json",
            include={
                "run": {"seed"},
                "adapters": {"inner", "reach", "encoder_trains"},
                "codec": True,
                "optimiser": True,
                "schedule": {"name", "batch_size"} | ({"steps"} if ends else set()),
            },
        )
        text = json.dumps({**deciding, "corpus": corpus}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def load_encoder(path: Path | str) -> Encoder:
    """The settings in the file; ManifestError for the first key that is wrong."""
    return read(Path(path), model=Encoder, faults=lambda found: peer_faults(found.peer))


def load_decoder(path: Path | str) -> Decoder:
    """The settings in the file; ManifestError for the first key that is wrong."""
    return read(Path(path), model=Decoder, faults=_impossible)


def _impossible(settings: Decoder) -> Iterator[Fault]:
    yield from peer_faults(settings.peer)
    for key in ("activation", "gradient"):
        name = getattr(settings.codec, key)
        if needs_basis(name) or links(name) or remembers(name):
            yield Fault(
                f"codec.{key}",
                f"is {name}, which needs a basis or remembers other messages; between encoder and "
                "decoder each message is written by itself",
            )
