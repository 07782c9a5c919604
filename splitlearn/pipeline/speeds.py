"""How fast the parties are, as a TOML file: written by a measurement, read by the planner.

tokens = 41.0             # real tokens of an example, mean
padded = 48.0             # with the padding that is computed on
layers = 6
width = 384
[trusted]                 # a line is [seconds a micro-batch, seconds a padded token]
layer = [2e-4, 6e-6]          # one layer forward
layer_backward = [3e-4, 1.2e-5]
ends = [1e-3, 1e-6]           # embeddings forward, head and loss forward and backward
ends_backward = [1e-4, 1e-6]  # embeddings backward
layer_update_s = 1e-4         # optimiser step of a layer
ends_update_s = 1e-4          # and of embeddings and head
message = [1e-3, 5e-10]       # a message without its codec: gate, log, frame; seconds a float32 byte
carry = [5e-4, 2e-9]          # a frame through TLS and gRPC, at one end; seconds a byte of the frame
[compute]                 # left out: as fast as the trusted party
[codecs]                  # on this model's rows: [float32 bytes / bytes, error, encode MB/s, decode MB/s]
"int8+zstd" = [4.7, 0.012, 900.0, 1900.0]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from splitlearn.manifest.fields import Fault, Table
from splitlearn.manifest.reading import read

__all__ = ["CodecSpeed", "Line", "PartySpeeds", "Speeds", "load_speeds", "write_speeds"]

_LINE = "two numbers from 0 up, seconds a micro-batch and seconds a padded token"
_Seconds = Annotated[float, Field(ge=0, le=3600)]
LineField = Annotated[tuple[_Seconds, _Seconds], Field(strict=False, description=_LINE)]


@dataclass(frozen=True)
class Line:
    """fixed_s + each_s * amount, fitted through measurements."""

    fixed_s: float
    each_s: float

    def at(self, amount: float) -> float:
        return self.fixed_s + self.each_s * amount

    @staticmethod
    def through(points: Mapping[float, float]) -> "Line":
        """The line through the smallest and the largest amount; neither number below zero.

        >>> Line.through({1.0: 3.0, 3.0: 5.0})
        Line(fixed_s=2.0, each_s=1.0)
        """
        low, high = min(points), max(points)
        each_s = max(0.0, (points[high] - points[low]) / (high - low)) if high > low else 0.0
        each_s = min(each_s, points[high] / high)
        return Line(points[high] - each_s * high, each_s)


class PartySpeeds(Table):
    """One party; see the head of this file."""

    layer: LineField
    layer_backward: LineField
    ends: LineField = Field(default=(0.0, 0.0), description=_LINE)
    ends_backward: LineField = Field(default=(0.0, 0.0), description=_LINE)
    layer_update_s: float = Field(default=0.0, ge=0, le=3600, description="seconds")
    ends_update_s: float = Field(default=0.0, ge=0, le=3600, description="seconds")
    message: LineField = Field(default=(0.0, 0.0), description=_LINE)
    carry: LineField = Field(default=(0.0, 0.0), description=_LINE)


_CODEC = "four numbers: float32 bytes over bytes, relative error, MB/s of encoding and of decoding"
CodecLine = Annotated[
    tuple[
        Annotated[float, Field(gt=0)],
        Annotated[float, Field(ge=0)],
        Annotated[float, Field(gt=0)],
        Annotated[float, Field(gt=0)],
    ],
    Field(strict=False, description=_CODEC),
]


class Speeds(Table):
    """The whole file."""

    tokens: float = Field(gt=0, le=131_072, description="a number of tokens above 0")
    padded: float = Field(gt=0, le=131_072, description="a number of tokens, at least `tokens`")
    layers: int = Field(ge=2, le=65_536, description="the model's number of layers")
    width: int = Field(ge=1, le=65_536, description="the model's hidden width")
    trusted: PartySpeeds
    compute: PartySpeeds | None = None
    codecs: dict[str, CodecLine] = Field(default={}, description=_CODEC)

    @property
    def peer(self) -> PartySpeeds:
        """The compute party: as fast as we are where nothing is known of it."""
        return self.compute or self.trusted

    def codec(self, name: str) -> "CodecSpeed | None":
        found = self.codecs.get(name)
        return None if found is None else CodecSpeed(*found)


@dataclass(frozen=True)
class CodecSpeed:
    """shrinks: float32 bytes / bytes written. error: norm of the difference / norm."""

    shrinks: float
    error: float
    encode_mb_s: float
    decode_mb_s: float


def load_speeds(path: Path) -> Speeds:
    """The speeds in a file. Raises ManifestError."""
    return read(path, model=Speeds, faults=_faults)


def _faults(speeds: Speeds) -> Iterator[Fault]:
    if speeds.padded < speeds.tokens:
        yield Fault("padded", f"is {speeds.padded:g}, less than the {speeds.tokens:g} of tokens")


def write_speeds(speeds: Speeds) -> str:
    """The file's text; read again it is the same.

    >>> party = PartySpeeds(layer=(1e-3, 1e-6), layer_backward=(2e-3, 2e-6))
    >>> print(write_speeds(Speeds(tokens=8.0, padded=9.0, layers=2, width=4, trusted=party)))
    tokens = 8.0
    padded = 9.0
    layers = 2
    width = 4
    <BLANKLINE>
    [trusted]
    layer = [0.001, 1e-06]
    layer_backward = [0.002, 2e-06]
    ends = [0.0, 0.0]
    ends_backward = [0.0, 0.0]
    layer_update_s = 0.0
    ends_update_s = 0.0
    message = [0.0, 0.0]
    carry = [0.0, 0.0]
    <BLANKLINE>
    """
    lines = [f"{key} = {getattr(speeds, key)!r}" for key in ("tokens", "padded", "layers", "width")]
    for name, party in (("trusted", speeds.trusted), ("compute", speeds.compute)):
        if party is not None:
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in party.model_dump().items()]
    if speeds.codecs:
        lines += ["", "[codecs]"]
        lines += [f'"{name}" = {_toml(line)}' for name, line in speeds.codecs.items()]
    return "\n".join(lines) + "\n"


def _toml(value: float | tuple[float, ...]) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(float(value))
