"""A codec from its name: one way to write values, then at most one lossless stage, joined by `+`."""

from splitlearn.codecs.base import Codec
from splitlearn.codecs.table import STAGES, VALUES
from splitlearn.errors import WireError

__all__ = ["NAMES", "build"]

# Every chain there is, in the table's order.
NAMES: tuple[str, ...] = (*VALUES, *(f"{values}+{stage}" for stage in STAGES for values in VALUES))


def build(name: str) -> Codec:
    """The codec of that name. A job file's names were checked when it was read, so an unknown one is
    the peer's: WireError.

    >>> build("int8+zstd").layout(rows=3, width=8)
    (Slot(name='zstd', dtype='U8', shape=None),)
    """
    if name not in NAMES:
        raise WireError(f"the peer names codec {name!r}; this version has {', '.join(NAMES)}")
    values, _, stage = name.partition("+")
    codec = VALUES[values].make()
    return STAGES[stage].wrap(codec) if stage else codec
