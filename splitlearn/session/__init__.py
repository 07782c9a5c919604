"""The legal conversations between two parties, as tables; no I/O, no tensors, no clock."""

from splitlearn.session.steps import EXCHANGE, MAX_UNSETTLED, NEXT, Progress, Session, State
from splitlearn.session.streams import STREAM_NEXT, StreamSession, StreamState

__all__ = [
    "EXCHANGE",
    "MAX_UNSETTLED",
    "NEXT",
    "STREAM_NEXT",
    "Progress",
    "Session",
    "State",
    "StreamSession",
    "StreamState",
]
