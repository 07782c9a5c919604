"""What may leave and what may come in: the data holder's rules, and checks on values.

An allow-list with no off switch. Gives a yes or a RefusedError; never sends, never logs, needs no
torch.
"""

from splitlearn.policy.content import (
    Private,
    check_finite,
    check_hidden,
    check_lengths,
    check_no_numbers,
    check_row_norm,
    check_weights,
)
from splitlearn.policy.explain import EXPLANATIONS, Explanation, explanation
from splitlearn.policy.forecast import (
    Plan,
    Verdict,
    foresee,
    lasts,
    plan_of_offer,
    plans_of_job,
)
from splitlearn.policy.guard import LabelGuard
from splitlearn.policy.rules import (
    STEP_KINDS,
    Direction,
    Facts,
    Guard,
    Leakage,
    Ledger,
    Policy,
    Rule,
    load,
    parse,
)

__all__ = [
    "EXPLANATIONS",
    "STEP_KINDS",
    "Direction",
    "Explanation",
    "Facts",
    "Guard",
    "LabelGuard",
    "Leakage",
    "Ledger",
    "Plan",
    "Policy",
    "Private",
    "Rule",
    "Verdict",
    "check_finite",
    "check_hidden",
    "check_lengths",
    "check_no_numbers",
    "check_row_norm",
    "check_weights",
    "explanation",
    "foresee",
    "lasts",
    "load",
    "parse",
    "plan_of_offer",
    "plans_of_job",
]
