"""The record of what left: an append-only log, its signed heads, and the check that it adds up.

Needs no torch: an auditor runs it with the log and a public key. Never holds content, and never
decides what may leave (the policy does).
"""

from splitlearn.audit.blobs import Blobs
from splitlearn.audit.checkpoint import Checkpoint
from splitlearn.audit.log import Log
from splitlearn.audit.reading import follow_records, read_records
from splitlearn.audit.reconcile import CLASSES, Difference, Reconciliation, reconcile
from splitlearn.audit.records import (
    Denied,
    Dp,
    Gap,
    HopHead,
    Leakage,
    PartShape,
    Party,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Record,
    Redaction,
    RunClose,
    RunOpen,
)
from splitlearn.audit.redact import redact
from splitlearn.audit.verify import Exit, Finding, Judge, JudgeOf, Report, verify
from splitlearn.audit.witness import Witness

__all__ = [
    "CLASSES",
    "Blobs",
    "Checkpoint",
    "Denied",
    "Difference",
    "Dp",
    "Exit",
    "Finding",
    "Gap",
    "HopHead",
    "Judge",
    "JudgeOf",
    "Leakage",
    "Log",
    "PartShape",
    "Party",
    "Payload",
    "PeerCheckpoint",
    "PolicyChange",
    "Receipt",
    "Reconciliation",
    "Record",
    "Redaction",
    "Report",
    "RunClose",
    "RunOpen",
    "Witness",
    "follow_records",
    "read_records",
    "reconcile",
    "redact",
    "verify",
]
