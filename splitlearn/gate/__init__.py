"""The one door: what leaves a party and what comes in passes here, and nowhere else."""

from splitlearn.gate.account import Outcome
from splitlearn.gate.door import Gate, Order, Private

__all__ = ["Gate", "Order", "Outcome", "Private"]
