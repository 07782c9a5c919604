"""Where things are, from a job's and a generator's settings file: the few keys that coordination needs.

The manifests proper are read by whoever trains; this reads them at a command's start, before a run.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from splitlearn.errors import ManifestError
from splitlearn.identity.tls import parse_address

__all__ = ["JobPlaces", "NodePlaces", "job_places", "node_places"]

_MAX_BYTES = 2**18


@dataclass(frozen=True)
class JobPlaces:
    """folder: of the job's runs. address: the coordinator's own door on this machine, "host:port"."""

    folder: Path
    address: str


@dataclass(frozen=True)
class NodePlaces:
    """identity: the generator's folder. address: the coordinator's. party: who may answer, or None."""

    identity: Path
    address: str
    party: str | None


def job_places(path: Path) -> JobPlaces:
    """Read [run] folder and [coordinator] address. Raises ManifestError."""
    table = _read(path)
    address = _text(table, "coordinator", "address", path=path)
    parse_address(address)
    return JobPlaces(folder=path.parent / _text(table, "run", "folder", path=path), address=address)


def node_places(path: Path) -> NodePlaces:
    """Read [identity] folder, [coordinator] address and its optional party. Raises ManifestError."""
    table = _read(path)
    address = _text(table, "coordinator", "address", path=path)
    parse_address(address)
    party = None
    if "party" in table["coordinator"]:
        party = _text(table, "coordinator", "party", path=path)
    identity = path.parent / _text(table, "identity", "folder", path=path)
    return NodePlaces(identity=identity, address=address, party=party)


def _read(path: Path) -> dict[str, dict[str, object]]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ManifestError(f"{path} is larger than {_MAX_BYTES} bytes; no manifest of ours is")
        return tomllib.loads(raw.decode())
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}); name a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is not TOML in UTF-8: {error}") from None


def _text(table: dict[str, dict[str, object]], name: str, key: str, *, path: Path) -> str:
    inner = table.get(name)
    value = inner.get(key) if isinstance(inner, dict) else None
    if not isinstance(value, str) or not value:
        raise ManifestError(f"{path}: {name}.{key} is missing; it takes a text")
    return value
