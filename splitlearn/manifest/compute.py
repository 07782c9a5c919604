"""compute.toml: what the compute party needs to know of itself. The job comes from its peer."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from splitlearn.manifest.fields import (
    DeviceField,
    Fault,
    FolderField,
    IdentityTable,
    ModelField,
    PeerTable,
    PolicyTable,
    PrecisionField,
    Table,
    peer_faults,
)
from splitlearn.manifest.reading import read

__all__ = ["Compute", "ComputeModelTable", "ComputeRunTable", "load_compute"]


class ComputeRunTable(Table):
    folder: FolderField = Field(description="the folder that gets logs and checkpoints")
    deadline_s: float = Field(
        default=60.0, gt=0, le=86_400, description="seconds to wait for the peer, up to 86400"
    )
    device: DeviceField = "cpu"
    precision: PrecisionField = "float32"
    cache_mb: int = Field(
        default=1024,
        ge=1,
        le=1_048_576,
        description="a whole number of MiB that rows kept for delta- codecs may take on disk",
    )


class ComputeModelTable(Table):
    """Where the trunk's weights may lie already. If their digest differs, the peer sends its own."""

    path: ModelField | None = Field(
        default=None, description="a folder with a transformers model, or a hub name"
    )


class Compute(Table):
    run: ComputeRunTable
    identity: IdentityTable
    peer: PeerTable
    model: ComputeModelTable = ComputeModelTable()
    policy: PolicyTable


def load_compute(path: Path | str) -> Compute:
    """The settings in the file; ManifestError for the first key that is wrong."""
    return read(Path(path), model=Compute, faults=_impossible)


def _impossible(compute: Compute) -> Iterator[Fault]:
    yield from peer_faults(compute.peer)
