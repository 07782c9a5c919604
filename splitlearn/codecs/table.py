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
from splitlearn.codecs.lowrank import Svd
from splitlearn.codecs.packed import Packed
from splitlearn.codecs.quantise import Int8
from splitlearn.codecs.sparse import RandomK, TopK
from splitlearn.codecs.transform import Transform

__all__ = ["STAGES", "VALUES", "Figures", "Stage", "Values"]


@dataclass(frozen=True)
class Figures:
    """shrinks: float32 bytes / bytes sent; error: norm of the difference / norm; speed_mb_s: see above."""

    shrinks: float
    error: float
    speed_mb_s: int


@dataclass(frozen=True)
class Values:
    """A first stage: how a value is written. `alone` and `with_zstd`: figures without and with that stage,
    of the example in manifest/chains.py where a number follows the name.

    make: from the name and its number.
    """

    line: str
    make: Callable[[str, float | None], Codec]
    alone: Figures
    with_zstd: Figures | None


@dataclass(frozen=True)
class Stage:
    """A stage after the first."""

    line: str
    wrap: Callable[[Codec], Codec]


def _given(number: float | None) -> float:
    assert number is not None, "the name of this family has a number"
    return number


VALUES: Mapping[str, Values] = {
    "identity": Values(
        line="float32 as it is; a split run equals the unsplit one to the bit",
        make=lambda *_: Identity(),
        alone=Figures(shrinks=1.0, error=0.0, speed_mb_s=35000),
        with_zstd=Figures(shrinks=1.2, error=0.0, speed_mb_s=400),
    ),
    "fp16": Values(
        line="float16 with one common power of two a message; safe for small gradients",
        make=lambda *_: Float16(),
        alone=Figures(shrinks=2.0, error=0.0002, speed_mb_s=6200),
        with_zstd=Figures(shrinks=2.3, error=0.0002, speed_mb_s=560),
    ),
    "bf16": Values(
        line="bfloat16; float32's range with 8 bits of precision",
        make=lambda *_: BFloat16(),
        alone=Figures(shrinks=2.0, error=0.0017, speed_mb_s=14000),
        with_zstd=Figures(shrinks=2.9, error=0.0017, speed_mb_s=460),
    ),
    "int8": Values(
        line="one byte a value, one float32 scale a row; the default for activations",
        make=lambda *_: Int8(),
        alone=Figures(shrinks=4.0, error=0.012, speed_mb_s=5500),
        with_zstd=Figures(shrinks=4.7, error=0.012, speed_mb_s=1300),
    ),
    "int8-g64": Values(
        line="one byte a value, a scale for 64 values",
        make=lambda name, _: Packed(name, bits=8, group=64),
        alone=Figures(shrinks=3.9, error=0.008, speed_mb_s=1),
        with_zstd=Figures(shrinks=4.2, error=0.008, speed_mb_s=1),
    ),
    "int4": Values(
        line="half a byte a value, one scale a row",
        make=lambda name, _: Packed(name, bits=4),
        alone=Figures(shrinks=7.9, error=0.2, speed_mb_s=1),
        with_zstd=Figures(shrinks=10, error=0.2, speed_mb_s=1),
    ),
    "int4-g64": Values(
        line="half a byte a value, a scale for 64 values",
        make=lambda name, _: Packed(name, bits=4, group=64),
        alone=Figures(shrinks=7.5, error=0.14, speed_mb_s=1),
        with_zstd=Figures(shrinks=8, error=0.14, speed_mb_s=1),
    ),
    "hadamard-int4": Values(
        line="int4 after a rotation that spreads outliers",
        make=lambda name, _: Packed(name, bits=4, rotated=True),
        alone=Figures(shrinks=7.9, error=0.13, speed_mb_s=1),
        with_zstd=Figures(shrinks=8.5, error=0.13, speed_mb_s=1),
    ),
    "int2": Values(
        line="a quarter of a byte a value, one scale a row",
        make=lambda name, _: Packed(name, bits=2),
        alone=Figures(shrinks=15.7, error=0.4, speed_mb_s=1),
        with_zstd=Figures(shrinks=16, error=0.4, speed_mb_s=1),
    ),
    "int2-g64": Values(
        line="a quarter of a byte a value, a scale for 64 values",
        make=lambda name, _: Packed(name, bits=2, group=64),
        alone=Figures(shrinks=14, error=0.37, speed_mb_s=1),
        with_zstd=Figures(shrinks=14.5, error=0.37, speed_mb_s=1),
    ),
    "hadamard-int2": Values(
        line="int2 after a rotation that spreads outliers",
        make=lambda name, _: Packed(name, bits=2, rotated=True),
        alone=Figures(shrinks=15.7, error=0.34, speed_mb_s=1),
        with_zstd=Figures(shrinks=16, error=0.34, speed_mb_s=1),
    ),
    "topk-": Values(
        line="the largest values of each row",
        make=lambda name, share: TopK(name, share=_given(share)),
        alone=Figures(shrinks=12, error=0.67, speed_mb_s=1),
        with_zstd=Figures(shrinks=13, error=0.67, speed_mb_s=1),
    ),
    "randk-": Values(
        line="columns drawn anew for each message; its seed travels",
        make=lambda name, share: RandomK(name, share=_given(share)),
        alone=Figures(shrinks=20, error=0.95, speed_mb_s=1),
        with_zstd=Figures(shrinks=22, error=0.95, speed_mb_s=1),
    ),
    "svd-": Values(
        line="singular values and vectors of each message, as the source system has it; slow",
        make=lambda name, share: Svd(name, share=_given(share)),
        alone=Figures(shrinks=2.5, error=0.2, speed_mb_s=1),
        with_zstd=Figures(shrinks=2.6, error=0.2, speed_mb_s=1),
    ),
    "transform-e": Values(
        line="one step for all values, chosen by a relative error, entropy coded",
        make=lambda name, error: Transform(name, error=_given(error)),
        alone=Figures(shrinks=10, error=0.13, speed_mb_s=1),
        with_zstd=None,
    ),
    "transform-b": Values(
        line="the same, the step chosen by bytes a row",
        make=lambda name, size: Transform(name, per_row=_given(size)),
        alone=Figures(shrinks=60, error=0.7, speed_mb_s=1),
        with_zstd=None,
    ),
}

STAGES: Mapping[str, Stage] = {
    "zstd": Stage(
        line="zstd over the bytes before it; no error, length depends on content", wrap=Zstd
    ),
}
