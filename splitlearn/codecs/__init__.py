"""How the rows of a message are written: from float32 rows to named parts and back.

Never decides what may leave, never sends. Whoever decodes needs nothing but the message.
"""

from splitlearn.codecs.base import Codec, Identity, Slot, check, to_part, to_tensor
from splitlearn.codecs.basis import Basis
from splitlearn.codecs.chain import NAMES, build

__all__ = ["NAMES", "Basis", "Codec", "Identity", "Slot", "build", "check", "to_part", "to_tensor"]
