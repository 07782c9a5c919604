"""Writes dp_accounting.json: what the dp-accounting package says of the cases below.

    uv run --group dp python tests/vectors/make_dp_accounting.py > tests/vectors/dp_accounting.json

Needs dp-accounting (0.6.0 made the file that is committed). The tests read only the file.
"""

import json
import sys
from importlib.metadata import version
from itertools import product

from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_randomized_response

# Noise of one release, by what one unit moves it.
SIGMAS = (0.5, 1.0, 2.0, 5.0, 20.0)
RELEASES = (1, 3, 10)
DELTAS = (1e-5, 1e-7)
# Probability that a label is kept, and classes.
KEPT = ((0.6, 2), (0.75, 2), (0.9, 3), (0.5, 10))
INTERVAL = 1e-4


def gaussian(sigma: float, releases: int) -> PLDAccountant:
    accountant = PLDAccountant(value_discretization_interval=INTERVAL)
    return accountant.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), releases))


def response(keep: float, classes: int) -> float:
    # Their parameter is the probability of drawing anew, the same label among the possible ones.
    again = (1 - keep) * classes / (classes - 1)
    loss = from_randomized_response(again, classes, value_discretization_interval=INTERVAL)
    return loss.get_epsilon_for_delta(0.0)


def main() -> None:
    composed = []
    for sigma, releases in product(SIGMAS, RELEASES):
        accountant = gaussian(sigma, releases)
        composed += [
            {
                "sigma": sigma,
                "releases": releases,
                "delta": delta,
                "epsilon": accountant.get_epsilon(delta),
            }
            for delta in DELTAS
        ]
    kept = [
        {"keep": keep, "classes": classes, "epsilon": response(keep, classes)}
        for keep, classes in KEPT
    ]
    made_by = f"dp-accounting {version('dp-accounting')}"
    found = {"made_by": made_by, "gaussian": composed, "response": kept}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
