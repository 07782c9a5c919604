"""The legal conversations between two parties, as tables; no I/O, no tensors, no clock."""

from splitlearn.session.bridges import BRIDGE_NEXT, BridgeSession, BridgeState
from splitlearn.session.legal import Side
from splitlearn.session.pairs import PAIR_NEXT, PairSession, PairState
from splitlearn.session.steps import EXCHANGE, MAX_UNSETTLED, NEXT, Progress, Session, State
from splitlearn.session.streams import STREAM_NEXT, StreamSession, StreamState

__all__ = [
    "BRIDGE_NEXT",
    "EXCHANGE",
    "MAX_UNSETTLED",
    "NEXT",
    "PAIR_NEXT",
    "STREAM_NEXT",
    "BridgeSession",
    "BridgeState",
    "PairSession",
    "PairState",
    "Progress",
    "Session",
    "Side",
    "State",
    "StreamSession",
    "StreamState",
]
