"""The names of codec chains: one way to write values, then at most one lossless stage, joined by `+`.

Data only. The codecs room makes a codec of each, the policy room says how much each writes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "EXAMPLES",
    "FAMILIES",
    "SAMPLES",
    "STAGES",
    "Chain",
    "Number",
    "chain_of",
    "links",
    "needs_basis",
    "remembers",
]


@dataclass(frozen=True)
class Number:
    """What follows a family's name: a decimal number within bounds, in its shortest spelling.

    whole: it has no decimals.
    """

    least: float
    most: float
    example: str
    what: str
    whole: bool = False


@dataclass(frozen=True)
class Chain:
    """A name, taken apart. stage is empty where there is none.

    >>> chain_of("svd-0.6+zstd")
    Chain(family='svd-', number=0.6, stage='zstd')
    """

    family: str
    number: float | None
    stage: str


_SHARE = "share kept"

# Families end with a hyphen, or with a hyphen and a letter, where a number follows.
FAMILIES: Mapping[str, Number | None] = {
    "identity": None,
    "fp16": None,
    "bf16": None,
    "int8": None,
    "int8-g64": None,
    "int4": None,
    "int4-g64": None,
    "hadamard-int4": None,
    "int2": None,
    "int2-g64": None,
    "hadamard-int2": None,
    "delta-int4": None,
    "delta-int4-g64": None,
    "delta-int2-g64": None,
    "topk-": Number(0.001, 1.0, "0.1", _SHARE),
    "randk-": Number(0.001, 1.0, "0.1", _SHARE),
    "svd-": Number(0.001, 1.0, "0.6", _SHARE),
    "lowrank-": Number(1, 1024, "32", "rank", whole=True),
    "transform-e": Number(0.001, 0.999, "0.13", "relative error"),
    "transform-b": Number(0.01, 65_536.0, "24", "bytes a row"),
    "pca-": Number(0.001, 1.0, "0.3", _SHARE),
    "pca-transform-e": Number(0.001, 0.999, "0.13", "relative error"),
    "pca-transform-b": Number(0.01, 65_536.0, "24", "bytes a row"),
}
# These code bytes themselves.
_WHOLE = ("transform-e", "transform-b", "pca-transform-e", "pca-transform-b")
# These work in a basis that both parties have agreed on.
_IN_BASIS = ("pca-", "pca-transform-e", "pca-transform-b")
# These start from what the message before them left; only their encoders do.
_REMEMBERING = ("lowrank-",)
# These write what changed in a sample's rows; both sides keep rows by the sample's pseudonym.
_LINKING = ("delta-int4", "delta-int4-g64", "delta-int2-g64")
# The part of a message that has the pseudonyms. Who gets it can tell a sample when it comes again.
SAMPLES = "samples"
STAGES = ("zstd",)

# One name of every chain there is.
EXAMPLES: tuple[str, ...] = (
    *(family + (number.example if number else "") for family, number in FAMILIES.items()),
    *(
        f"{family}{number.example if number else ''}+{stage}"
        for stage in STAGES
        for family, number in FAMILIES.items()
        if family not in _WHOLE
    ),
)


def needs_basis(name: str) -> bool:
    """Whether the codec of that name works in a basis fitted to public text."""
    chain = chain_of(name)
    return chain is not None and chain.family in _IN_BASIS


def remembers(name: str) -> bool:
    """Whether what a codec of that name writes depends on the messages that it wrote before."""
    chain = chain_of(name)
    return chain is not None and chain.family in _REMEMBERING


def links(name: str) -> bool:
    """Whether a codec of that name needs to be told which sample is which."""
    chain = chain_of(name)
    return chain is not None and chain.family in _LINKING


def chain_of(name: str) -> Chain | None:
    """The name's parts; None if there is no such chain. A number has one spelling: no 0.60, .6 or 6e-1."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    family, written, stage = match["family"], match["number"], match["stage"] or ""
    bounds, number = FAMILIES[family], None
    if (bounds is None) != (written is None) or (stage and family in _WHOLE):
        return None
    if bounds is not None:
        number = float(written)
        if not bounds.least <= number <= bounds.most or (bounds.whole and "." in written):
            return None
    return Chain(family=family, number=number, stage=stage)


_NAME = re.compile(
    rf"(?P<family>{'|'.join(re.escape(family) for family in FAMILIES)})"
    r"(?P<number>(?:0|[1-9][0-9]{0,4})(?:\.[0-9]{0,3}[1-9])?)?"
    rf"(?:\+(?P<stage>{'|'.join(STAGES)}))?"
)
