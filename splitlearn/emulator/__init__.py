"""A slow or faulty network link in userspace, to try a run on before it is run in earnest."""

from splitlearn.emulator.relay import Relay
from splitlearn.emulator.wire import Wire

__all__ = ["Relay", "Wire"]
