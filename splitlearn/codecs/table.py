"""The codecs there are: one line and measured figures each.

Figures: float32 rows of a real six-layer encoder (width 384) after its second layer, real tokens of
news articles, one thread; speed in float32 bytes over encoding plus decoding. `tests/bench/codecs.py`
measures them again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from splitlearn.codecs.base import Codec, Identity
from splitlearn.codecs.cast import BFloat16, Float16
from splitlearn.codecs.lossless import Zstd
from splitlearn.codecs.quantise import Int8

__all__ = ["STAGES", "VALUES", "Figures", "Stage", "Values"]


@dataclass(frozen=True)
class Figures:
    """shrinks: float32 bytes / bytes sent; error: norm of the difference / norm; speed_mb_s: see above."""

    shrinks: float
    error: float
    speed_mb_s: int


@dataclass(frozen=True)
class Values:
    """A first stage: how a value is written. `alone` and `with_zstd`: figures without and with that stage."""

    line: str
    make: Callable[[], Codec]
    alone: Figures
    with_zstd: Figures


@dataclass(frozen=True)
class Stage:
    """A stage after the first."""

    line: str
    wrap: Callable[[Codec], Codec]


VALUES: Mapping[str, Values] = {
    "identity": Values(
        line="float32 as it is; a split run equals the unsplit one to the bit",
        make=Identity,
        alone=Figures(shrinks=1.0, error=0.0, speed_mb_s=35000),
        with_zstd=Figures(shrinks=1.2, error=0.0, speed_mb_s=400),
    ),
    "fp16": Values(
        line="float16 with one common power of two a message; safe for small gradients",
        make=Float16,
        alone=Figures(shrinks=2.0, error=0.0002, speed_mb_s=6200),
        with_zstd=Figures(shrinks=2.3, error=0.0002, speed_mb_s=560),
    ),
    "bf16": Values(
        line="bfloat16; float32's range with 8 bits of precision",
        make=BFloat16,
        alone=Figures(shrinks=2.0, error=0.0017, speed_mb_s=14000),
        with_zstd=Figures(shrinks=2.9, error=0.0017, speed_mb_s=460),
    ),
    "int8": Values(
        line="one byte a value, one float32 scale a row; the default for activations",
        make=Int8,
        alone=Figures(shrinks=4.0, error=0.012, speed_mb_s=5500),
        with_zstd=Figures(shrinks=4.7, error=0.012, speed_mb_s=1300),
    ),
}

STAGES: Mapping[str, Stage] = {
    "zstd": Stage(
        line="zstd over the bytes before it; no error, length depends on content", wrap=Zstd
    ),
}
