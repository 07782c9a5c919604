"""What a check of a log has to say: one finding each, and what they come to. Never reads a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Exit", "Finding", "Findings", "gravest"]


class Exit(IntEnum):
    """What the findings come to, and the exit code of `splitlearn audit verify` and `reconcile`."""

    CLEAN = 0
    POLICY = 1
    USAGE = 2
    INTEGRITY = 3
    MISMATCH = 4
    UNCHECKABLE = 5


@dataclass(frozen=True)
class Finding:
    """One thing that a reader should know. `exit` CLEAN: a remark. `record`: index of its line."""

    exit: Exit
    name: str
    sentence: str
    record: int | None = None


class Findings(list[Finding]):
    """Findings as they are made."""

    def note(self, exit_code: Exit, name: str, sentence: str, *, record: int | None = None) -> None:
        self.append(Finding(exit=exit_code, name=name, sentence=sentence, record=record))


def gravest(exits: Iterable[Exit]) -> Exit:
    """A broken record before a missing one, before one that cannot be told, before a broken rule.

    >>> gravest([Exit.POLICY, Exit.CLEAN, Exit.INTEGRITY]).name
    'INTEGRITY'
    """
    found = set(exits)
    order = (Exit.INTEGRITY, Exit.MISMATCH, Exit.UNCHECKABLE, Exit.POLICY)
    return next((code for code in order if code in found), Exit.CLEAN)
