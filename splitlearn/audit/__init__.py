"""The record of what left: an append-only log, its signed heads, and the check that it adds up.

Needs no torch: an auditor runs it with the log and a public key. Never holds content, and never
decides what may leave (the policy does).
"""

from splitlearn.audit.checkpoint import Checkpoint
from splitlearn.audit.log import Log
from splitlearn.audit.records import (
    Denied,
    Gap,
    PartShape,
    Party,
    Payload,
    Record,
    RunClose,
    RunOpen,
)
from splitlearn.audit.verify import Exit, Finding, Judge, Report, verify

__all__ = [
    "Checkpoint",
    "Denied",
    "Exit",
    "Finding",
    "Gap",
    "Judge",
    "Log",
    "PartShape",
    "Party",
    "Payload",
    "Record",
    "Report",
    "RunClose",
    "RunOpen",
    "verify",
]
