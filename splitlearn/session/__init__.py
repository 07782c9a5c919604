"""The legal conversations between two parties, as tables; no I/O, no tensors, no clock."""

from splitlearn.session.steps import EXCHANGE, MAX_UNSETTLED, NEXT, Progress, Session, State

__all__ = ["EXCHANGE", "MAX_UNSETTLED", "NEXT", "Progress", "Session", "State"]
