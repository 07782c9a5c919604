"""A codec from its name: one way to write values, then at most one lossless stage, joined by `+`."""

from splitlearn.codecs.base import Codec
from splitlearn.codecs.basis import Basis
from splitlearn.codecs.delta import Delta
from splitlearn.codecs.table import STAGES, VALUES
from splitlearn.errors import WireError
from splitlearn.manifest.chains import EXAMPLES, chain_of

__all__ = ["NAMES", "build"]

# One name of every chain there is; where a number follows a name, others are chains too.
NAMES = EXAMPLES


def build(name: str, *, basis: Basis | None = None) -> Codec:
    """The codec of that name, in the agreed basis if it works in one.

    A job file's names were checked when it was read, so an unknown one is the peer's: WireError.

    >>> build("int8+zstd").layout(rows=3, width=8)
    (Slot(name='zstd', dtype='U8', shape=None),)
    """
    chain = chain_of(name)
    if chain is None:
        raise WireError(f"the peer names codec {name!r}; this version has {', '.join(NAMES)}")
    codec = VALUES[chain.family].make(name.partition("+")[0], chain.number, basis)
    if not chain.stage:
        return codec
    wrap = STAGES[chain.stage].wrap
    # What a message of changes begins with, its pseudonyms, has to be read before the rest can be.
    return codec.staged(wrap) if isinstance(codec, Delta) else wrap(codec)
