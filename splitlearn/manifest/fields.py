"""The kinds of value a manifest holds, and the tables that more than one manifest has.

Every field's `description` completes the sentence "it takes ..."; `reading` quotes it in errors.
Paths are taken relative to the file they stand in; `~` is the user's home.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo

from splitlearn.manifest.chains import chain_of

__all__ = [
    "TEXT_FORMATS",
    "Address",
    "AddressField",
    "ChainTable",
    "CodecField",
    "DeviceField",
    "Fault",
    "FileField",
    "FolderField",
    "IdentityTable",
    "ModelField",
    "NameField",
    "PeerTable",
    "PolicyTable",
    "PrecisionField",
    "Source",
    "SourceField",
    "Table",
    "TextField",
    "peer_faults",
]


class Fault(NamedTuple):
    """An impossible combination: the key to blame, and the rest of the sentence about it."""

    key: str
    why: str


class Table(BaseModel):
    """Base of all tables: no unknown key, no conversion of types, nothing changes after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Address:
    """Host and port.

    >>> str(Address(host="::1", port=7000))
    '[::1]:7000'
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Source:
    """Where rows come from: a file of this machine, or a data set of a hub.

    text: what the user wrote. Either `file` and `format` are set (csv, tsv, jsonl, parquet; txt where
    text without columns will do), or `name` and, where given, `config` and `split`.
    """

    text: str
    file: Path | None = None
    format: str | None = None
    name: str | None = None
    config: str | None = None
    split: str | None = None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("that is no string")
    if not value.strip() or not value.isprintable():
        raise ValueError("that is empty or has unprintable characters")
    return value


def _absolute(text: str, info: ValidationInfo) -> Path:
    """Never touches the disk and, unlike Path.resolve, never raises."""
    context: Mapping[str, Path] = info.context or {}
    folder = context["file"].absolute().parent if "file" in context else Path.cwd()
    return Path(os.path.normpath(folder / os.path.expanduser(text)))  # noqa: PTH111


def _existing(path: Path) -> Path:
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for too long a name
        raise ValueError(f"there is no file {path}")
    return path


def _folder(value: object, info: ValidationInfo) -> Path:
    return _absolute(_text(value), info)


def _file(value: object, info: ValidationInfo) -> Path:
    return _existing(_absolute(_text(value), info))


def _address(value: object) -> Address:
    match = _ADDRESS.fullmatch(_text(value))
    if match is None or int(match["port"]) > _LAST_PORT:
        raise ValueError("that is not host:port")
    return Address(host=match["ipv6"] or match["host"], port=int(match["port"]))


def _model(value: object, info: ValidationInfo) -> str:
    text = _text(value)
    folder = _absolute(text, info)
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises for too long a name
        return str(folder)
    if not _HUB_MODEL.fullmatch(text):
        raise ValueError(f"there is no folder {folder}")
    return text


def _source(value: object, info: ValidationInfo) -> Source:
    text = _text(value)
    match = _FILE.fullmatch(text)
    if match is not None:
        return Source(text=text, file=_existing(_absolute(text, info)), format=match["format"])
    match = _HUB_DATA.fullmatch(text)
    if match is None:
        raise ValueError("that is neither a file of these kinds nor a hub name")
    return Source(text=text, name=match["name"], config=match["config"], split=match["split"])


# What text may be in; lines of txt have no columns.
TEXT_FORMATS = ("txt", "csv", "tsv", "jsonl", "parquet")


def _text_source(value: object, info: ValidationInfo) -> Source:
    text = _text(value)
    if re.fullmatch(r".*\.txt(?:\.gz)?", text, re.DOTALL):
        return Source(text=text, file=_existing(_absolute(text, info)), format="txt")
    return _source(value, info)


_LAST_PORT = 65_535
_ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})"
)
_FILE = re.compile(r".*\.(?P<format>csv|tsv|jsonl|parquet)(?:\.gz)?", re.DOTALL)
_HUB_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_HUB_DATA = re.compile(
    rf"(?P<name>{_HUB_MODEL.pattern})(?::(?P<config>[A-Za-z0-9._-]+))?(?:@(?P<split>[A-Za-z0-9._-]+))?"
)

FolderField = Annotated[Path, PlainValidator(_folder)]
FileField = Annotated[Path, PlainValidator(_file)]
AddressField = Annotated[Address, PlainValidator(_address)]
ModelField = Annotated[str, PlainValidator(_model)]
TextField = Annotated[Source, PlainValidator(_text_source)]
SourceField = Annotated[Source, PlainValidator(_source)]
# A device of this machine: no number is promised to be the same on another kind of device.
DeviceField = Annotated[
    str,
    Field(
        pattern=r"^(cpu|cuda(:(0|[1-9][0-9]?))?)$",
        description="cpu, cuda, or one of several such as cuda:1",
    ),
]
PrecisionField = Annotated[
    Literal["float32", "bf16"],
    Field(
        description="float32, or bf16: products of bfloat16, with weights of float32",
    ),
]
NameField = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]


def _chain(value: object) -> str:
    text = _text(value)
    if chain_of(text) is None:
        raise ValueError("there is no such chain")
    return text


CodecField = Annotated[str, PlainValidator(_chain)]


class IdentityTable(Table):
    """Who we are."""

    folder: FolderField = Field(description="the folder that `splitlearn join` filled")


class PeerTable(Table):
    """Whom we work with, and which of the two opens the connection."""

    party: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$",
        description="the peer's party name: up to 42 lower-case letters, digits and hyphens",
    )
    dial: AddressField | None = Field(default=None, description="the peer's address as host:port")
    listen: AddressField | None = Field(
        default=None, description="the address to wait at as host:port"
    )


class ChainTable(PeerTable):
    """A further compute party, and where its layers begin.

    direct: it is sent rows by the party before it, and not by way of ours.
    """

    first: int = Field(
        ge=2,
        le=65_536,
        description="the number of the first layer that this party hosts, from 2 up",
    )
    direct: bool = Field(default=False, description="true or false")


class PolicyTable(Table):
    """What may leave."""

    file: FileField = Field(description="the policy file that says what may leave")


def peer_faults(peer: PeerTable, *, table: str = "peer") -> Iterator[Fault]:
    """What is impossible about a peer's table, whose name is `table`."""
    if (peer.dial is None) == (peer.listen is None):
        yield Fault(
            f"{table}.dial", f"or {table}.listen has to be given as host:port, and not both"
        )
    if peer.dial is not None and not peer.dial.port:
        yield Fault(f"{table}.dial", "has port 0; it takes the port the peer listens at")
