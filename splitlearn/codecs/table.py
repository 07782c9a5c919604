"""The codecs there are: one line and measured figures each.

Figures: float32 rows of a real six-layer encoder (width 384) after its third layer, real tokens of
news articles, one thread; speed in float32 bytes over encoding plus decoding. `tests/bench/codecs.py`
measures them again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from splitlearn.codecs.base import Codec, Identity
from splitlearn.codecs.basis import Basis, Pca
from splitlearn.codecs.cast import BFloat16, Float16
from splitlearn.codecs.delta import Delta
from splitlearn.codecs.lossless import Zstd
from splitlearn.codecs.lowrank import Svd
from splitlearn.codecs.packed import Packed
from splitlearn.codecs.quantise import Int8
from splitlearn.codecs.sparse import RandomK, TopK
from splitlearn.codecs.transform import Transform
from splitlearn.codecs.warm import LowRank
from splitlearn.errors import WireError

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

    make: from the name, its number and the agreed basis, where it has them.
    """

    line: str
    make: Callable[[str, float | None, Basis | None], Codec]
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


def _agreed(basis: Basis | None) -> Basis:
    if basis is None:
        raise WireError("the peer names a codec in a basis for messages that have none")
    return basis


VALUES: Mapping[str, Values] = {
    "identity": Values(
        line="float32 as it is; a split run equals the unsplit one to the bit",
        make=lambda *_: Identity(),
        alone=Figures(shrinks=1.0, error=0.0, speed_mb_s=8400),
        with_zstd=Figures(shrinks=1.2, error=0.0, speed_mb_s=380),
    ),
    "fp16": Values(
        line="float16 with one common power of two a message; safe for small gradients",
        make=lambda *_: Float16(),
        alone=Figures(shrinks=2.0, error=0.0002, speed_mb_s=3400),
        with_zstd=Figures(shrinks=2.3, error=0.0002, speed_mb_s=530),
    ),
    "bf16": Values(
        line="bfloat16; float32's range with 8 bits of precision",
        make=lambda *_: BFloat16(),
        alone=Figures(shrinks=2.0, error=0.0017, speed_mb_s=9800),
        with_zstd=Figures(shrinks=2.9, error=0.0017, speed_mb_s=450),
    ),
    "int8": Values(
        line="one byte a value, one float32 scale a row; the default for activations",
        make=lambda *_: Int8(),
        alone=Figures(shrinks=4.0, error=0.012, speed_mb_s=4500),
        with_zstd=Figures(shrinks=4.7, error=0.012, speed_mb_s=1200),
    ),
    "int8-g64": Values(
        line="one byte a value, a scale for 64 values",
        make=lambda name, *_: Packed(name, bits=8, group=64),
        alone=Figures(shrinks=3.9, error=0.0075, speed_mb_s=1600),
        with_zstd=Figures(shrinks=4.2, error=0.0075, speed_mb_s=750),
    ),
    "int4": Values(
        line="half a byte a value, one scale a row",
        make=lambda name, *_: Packed(name, bits=4),
        alone=Figures(shrinks=7.9, error=0.196, speed_mb_s=1100),
        with_zstd=Figures(shrinks=11.7, error=0.196, speed_mb_s=840),
    ),
    "int4-g64": Values(
        line="half a byte a value, a scale for 64 values",
        make=lambda name, *_: Packed(name, bits=4, group=64),
        alone=Figures(shrinks=7.5, error=0.135, speed_mb_s=1100),
        with_zstd=Figures(shrinks=9.4, error=0.135, speed_mb_s=740),
    ),
    "hadamard-int4": Values(
        line="int4 after a rotation that spreads outliers",
        make=lambda name, *_: Packed(name, bits=4, rotated=True),
        alone=Figures(shrinks=7.9, error=0.132, speed_mb_s=410),
        with_zstd=Figures(shrinks=9.9, error=0.132, speed_mb_s=350),
    ),
    "int2": Values(
        line="a quarter of a byte a value, one scale a row",
        make=lambda name, *_: Packed(name, bits=2),
        alone=Figures(shrinks=15.7, error=0.414, speed_mb_s=1400),
        with_zstd=Figures(shrinks=16.8, error=0.414, speed_mb_s=1000),
    ),
    "int2-g64": Values(
        line="a quarter of a byte a value, a scale for 64 values",
        make=lambda name, *_: Packed(name, bits=2, group=64),
        alone=Figures(shrinks=14.2, error=0.408, speed_mb_s=1300),
        with_zstd=Figures(shrinks=15.8, error=0.408, speed_mb_s=950),
    ),
    "hadamard-int2": Values(
        line="int2 after a rotation that spreads outliers",
        make=lambda name, *_: Packed(name, bits=2, rotated=True),
        alone=Figures(shrinks=15.7, error=0.347, speed_mb_s=450),
        with_zstd=Figures(shrinks=16.6, error=0.347, speed_mb_s=400),
    ),
    **{
        f"delta-{then}": Values(
            line=f"what changed in a sample's rows, in {then}; the first time int8, as these figures are",
            make=lambda name, *_, then=then, bits=bits, group=group: Delta(
                name, then=Packed(then, bits=bits, group=group)
            ),
            alone=Figures(shrinks=4.0, error=0.012, speed_mb_s=300),
            with_zstd=Figures(shrinks=4.6, error=0.012, speed_mb_s=200),
        )
        for then, bits, group in (("int4", 4, 0), ("int4-g64", 4, 64), ("int2-g64", 2, 64))
    },
    "topk-": Values(
        line="the largest values of each row",
        make=lambda name, share, _: TopK(name, share=_given(share)),
        alone=Figures(shrinks=12.4, error=0.696, speed_mb_s=260),
        with_zstd=Figures(shrinks=17.2, error=0.696, speed_mb_s=240),
    ),
    "randk-": Values(
        line="columns drawn anew for each message; its seed travels",
        make=lambda name, share, _: RandomK(name, share=_given(share)),
        alone=Figures(shrinks=20.2, error=0.951, speed_mb_s=670),
        with_zstd=Figures(shrinks=22.2, error=0.951, speed_mb_s=570),
    ),
    "svd-": Values(
        line="singular values and vectors of each message, as the source system has it; slow",
        make=lambda name, share, _: Svd(name, share=_given(share)),
        alone=Figures(shrinks=2.8, error=0.173, speed_mb_s=59),
        with_zstd=Figures(shrinks=3.2, error=0.173, speed_mb_s=55),
    ),
    "lowrank-": Values(
        line="factors found from the last ones; the space of each message's rows leaks with it",
        make=lambda name, rank, _: LowRank(name, rank=int(_given(rank))),
        alone=Figures(shrinks=20.2, error=0.626, speed_mb_s=300),
        with_zstd=Figures(shrinks=21.9, error=0.626, speed_mb_s=250),
    ),
    "transform-e": Values(
        line="one step for all values, chosen by a relative error, entropy coded",
        make=lambda name, error, _: Transform(name, error=_given(error)),
        alone=Figures(shrinks=10.2, error=0.13, speed_mb_s=520),
        with_zstd=None,
    ),
    "transform-b": Values(
        line="the same, the step chosen by bytes a row",
        make=lambda name, size, _: Transform(name, per_row=_given(size)),
        alone=Figures(shrinks=64.5, error=0.776, speed_mb_s=210),
        with_zstd=None,
    ),
    "pca-": Values(
        line="coordinates in a basis of public text, in float16",
        make=lambda name, share, basis: Pca(name, share=_given(share), basis=_agreed(basis)),
        alone=Figures(shrinks=6.7, error=0.46, speed_mb_s=620),
        with_zstd=Figures(shrinks=7.7, error=0.46, speed_mb_s=450),
    ),
    "pca-transform-e": Values(
        line="transform in a basis of public text; for activations and outputs",
        make=lambda name, error, basis: Transform(name, error=_given(error), basis=_agreed(basis)),
        alone=Figures(shrinks=12.0, error=0.13, speed_mb_s=165),
        with_zstd=None,
    ),
    "pca-transform-b": Values(
        line="the same, the step chosen by bytes a row",
        make=lambda name, size, basis: Transform(name, per_row=_given(size), basis=_agreed(basis)),
        alone=Figures(shrinks=64.0, error=0.58, speed_mb_s=130),
        with_zstd=None,
    ),
}

STAGES: Mapping[str, Stage] = {
    "zstd": Stage(
        line="zstd over the bytes before it; no error, length depends on content", wrap=Zstd
    ),
}
