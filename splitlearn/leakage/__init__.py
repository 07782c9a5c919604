"""What a peer can read out of what it is sent: attacks as an able attacker would run them.

This room attacks rows and numbers it is handed; it never reads a log, builds a model, sends, or
looks at the truth before a guess is finished.
"""

from splitlearn.leakage.known import Guess, Known, Recovery, Seen, TextReport, Truth
from splitlearn.leakage.labels import (
    LabelRecovery,
    LabelReport,
    SeenGradients,
    attack_labels,
    read_next_tokens,
    span_test,
)
from splitlearn.leakage.suite import SUITE_VERSION, Budget, attack_text

__all__ = [
    "SUITE_VERSION",
    "Budget",
    "Guess",
    "Known",
    "LabelRecovery",
    "LabelReport",
    "Recovery",
    "Seen",
    "SeenGradients",
    "TextReport",
    "Truth",
    "attack_labels",
    "attack_text",
    "read_next_tokens",
    "span_test",
]
