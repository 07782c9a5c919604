"""Randomised response on training labels: drawn once, before anything is computed from a label.

A label is kept with a given probability, or becomes any other of the set (what epsilon that is,
policy/accounting.py says). Which, is decided by a secret of this run and the label's place alone: the
same in every epoch, in any order and after any restart, so that the draw is made once and no use of it
tells more. Another secret is another draw, and the epsilons of all draws add up. Unit: one label, which
in token classification is the label of one word: a text of n words is covered by n epsilon. Never
touches labels that only score.
"""

import hmac
from collections.abc import Mapping
from dataclasses import replace

from splitlearn.tasks.encode import IGNORED, Encoded, Example

__all__ = ["randomised"]

# A draw is a whole number below this.
_DRAWS = 2**64


def randomised(encoded: Encoded, *, keep: float, secret: bytes) -> Encoded:
    """The same examples with labels drawn anew, the data's own kept as `truth`.

    keep: the probability that a label stays what it is. secret: at least 32 random bytes that the
    peer does not have. `gold` stays.
    """
    assert len(secret) >= 32, "the secret is guessed otherwise, and every draw undone"
    classes = len(encoded.labels)
    kept = int(keep * _DRAWS)

    def drawn(label: int, place: str) -> int:
        digest = hmac.digest(secret, place.encode(), "sha256")
        if label == IGNORED or int.from_bytes(digest[:8], "big") < kept:
            return label
        return (label + 1 + int.from_bytes(digest[8:16], "big") % (classes - 1)) % classes

    def targets(example: Example) -> Mapping[str, int | tuple[int, ...]]:
        labels = example.targets["labels"]
        if not isinstance(labels, tuple):
            return {"labels": drawn(labels, f"label {example.row}")}
        each = (drawn(label, f"label {example.row} {t}") for t, label in enumerate(labels))
        return {"labels": tuple(each)}

    return replace(
        encoded,
        examples=tuple(
            replace(example, targets=targets(example), truth=example.targets)
            for example in encoded.examples
        ),
    )
