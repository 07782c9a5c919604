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
from splitlearn.manifest.hops import MAX_PARTIES
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
    neighbour: tuple[PeerTable, ...] = Field(
        default=(),
        strict=False,
        max_length=MAX_PARTIES,
        description="a table [[neighbour]] for each compute party that may be next to this one in a direct "
        "chain",
    )
    policy: PolicyTable


def load_compute(path: Path | str) -> Compute:
    """The settings in the file; ManifestError for the first key that is wrong."""
    return read(Path(path), model=Compute, faults=_impossible)


def _impossible(compute: Compute) -> Iterator[Fault]:
    yield from peer_faults(compute.peer)
    taken = {compute.peer.listen} if compute.peer.listen is not None else set()
    parties: set[str] = set()
    for table in compute.neighbour:
        yield from peer_faults(table, table="neighbour")
        if table.party in parties:
            yield Fault(
                "neighbour.party", f"is {table.party} twice; one table says how it is reached"
            )
        if table.listen is not None and table.listen.port and table.listen in taken:
            yield Fault(
                "neighbour.listen",
                f"is {table.listen}, where we wait for somebody else; it takes an address of its own",
            )
        parties |= {table.party}
        taken |= {table.listen} if table.listen is not None else set()
