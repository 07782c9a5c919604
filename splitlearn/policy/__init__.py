"""What may leave and what may come in: the data holder's rules, and checks on values.

An allow-list with no off switch. Gives a yes or a RefusedError; never sends, never logs, needs no
torch.
"""

from splitlearn.policy.content import (
    Private,
    check_finite,
    check_hidden,
    check_lengths,
    check_row_norm,
    check_weights,
)
from splitlearn.policy.rules import (
    STEP_KINDS,
    Direction,
    Facts,
    Ledger,
    Policy,
    Rule,
    load,
    parse,
)

__all__ = [
    "STEP_KINDS",
    "Direction",
    "Facts",
    "Ledger",
    "Policy",
    "Private",
    "Rule",
    "check_finite",
    "check_hidden",
    "check_lengths",
    "check_row_norm",
    "check_weights",
    "load",
    "parse",
]
