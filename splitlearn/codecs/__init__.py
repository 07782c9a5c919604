"""How the rows of a message are written: from float32 rows to named parts and back.

Never decides what may leave, never sends. Whoever decodes needs nothing but the message, or,
for changes (`delta`), what it kept of the same samples.
"""

from splitlearn.codecs.base import Codec, Identity, Slot, check, to_part, to_tensor
from splitlearn.codecs.basis import Basis
from splitlearn.codecs.chain import NAMES, build
from splitlearn.codecs.delta import NAME_BYTES, NOBODY, About, Delta

__all__ = [
    "NAMES",
    "NAME_BYTES",
    "NOBODY",
    "About",
    "Basis",
    "Codec",
    "Delta",
    "Identity",
    "Slot",
    "build",
    "check",
    "to_part",
    "to_tensor",
]
