"""How a run's end is told from one process to another: files in its folder, one line through Flower."""

import re

from splitlearn.errors import (
    AuditError,
    ChannelError,
    ManifestError,
    PeerError,
    RefusedError,
    SplitLearnError,
)

__all__ = ["CONDUCTING", "FINISHED", "failure", "read_failure"]

# In a job's folder: held while a process conducts it; written when there is nothing left to conduct.
CONDUCTING = ".conducting"
FINISHED = "finished.json"
_MAX_SENTENCE = 2_000


def failure(error: SplitLearnError) -> RuntimeError:
    """What a ServerApp raises for `error`: Flower hands its words on, and only those."""
    return RuntimeError(f"[exit {error.exit_code}] {' '.join(str(error).split())}")


def read_failure(details: str) -> SplitLearnError | None:
    """The error that `failure` put into a run's details; None where there is none of ours."""
    found = _FAILURE.search(" ".join(details.split()))
    if found is None:
        return None
    code, sentence = int(found[1]), found[2][:_MAX_SENTENCE]
    if code == RefusedError.exit_code:
        return RefusedError(sentence, rule="gate-shut")
    for kind in (ManifestError, PeerError, ChannelError, AuditError):
        if code == kind.exit_code:
            return kind(sentence)
    return SplitLearnError(sentence)


_FAILURE = re.compile(r"\[exit (\d)\] (.+)")
