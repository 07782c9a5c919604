"""All attacks on text that apply, and the strongest of them as the headline.

The outcome is a lower bound: it says what these attacks get, and a better one gets more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from splitlearn.leakage.inverter import STEPS, Kind, inverter
from splitlearn.leakage.known import Guess, Known, Seen, TextReport, Truth
from splitlearn.leakage.linear import fit_profile, means, nearest, ridge
from splitlearn.leakage.lookup import ENUMERATED_TOKENS, enumerate_vocabulary, table
from splitlearn.leakage.public import PLANTED_TOKENS, study
from splitlearn.leakage.refine import REFINED_TOKENS, refine
from splitlearn.leakage.score import baselines, recovery

__all__ = ["SUITE_VERSION", "Budget", "attack_text"]

# Raised when an attack is added or made stronger, so that older figures aren't compared with newer.
SUITE_VERSION = 1


@dataclass(frozen=True)
class Budget:
    """What an attacker may spend, in counts and not in seconds, so that a run can be repeated.

    Tokens are tokens through the public bottom. A perceptron alone is a weaker inverter than one with
    a transformer layer and takes as long; `means` reads single rows better than both.
    """

    inverters: tuple[Kind, ...] = ("transformer",)
    inverter_steps: int = STEPS
    planted_tokens: int = PLANTED_TOKENS
    refined_tokens: int = REFINED_TOKENS
    enumerated_tokens: int = ENUMERATED_TOKENS

    @classmethod
    def quick(cls) -> "Budget":
        """About a tenth of it: a first look, weaker than what a patient attacker gets."""
        return cls(
            inverter_steps=STEPS // 10,
            planted_tokens=PLANTED_TOKENS // 10,
            refined_tokens=REFINED_TOKENS // 10,
            enumerated_tokens=ENUMERATED_TOKENS // 10,
        )


def attack_text(
    known: Known, seen: Seen, truth: Truth, *, seed: int, budget: Budget | None = None
) -> TextReport:
    """Runs them all on rows a peer decoded, and holds what they say against the truth.

    A few minutes on one core for some thousand tokens and a bottom of a few layers.
    """
    assert tuple(map(len, truth.ids)) == seen.lengths, "the truth is of other texts than the rows"
    guesses = list(_guesses(known, seen, seed=seed, budget=budget or Budget()))
    attacks = [recovery(guess, truth, known=known) for guess in guesses]
    attacks.sort(key=lambda found: (found.top1, found.top20), reverse=True)
    trivial = baselines(known, rows=len(seen.rows_NR), seed=seed)
    return TextReport(
        suite_version=SUITE_VERSION,
        best=attacks[0],
        attacks=tuple(attacks),
        baselines=tuple(recovery(guess, truth, known=known) for guess in trivial),
    )


def _guesses(known: Known, seen: Seen, *, seed: int, budget: Budget) -> Iterator[Guess]:
    """Every attack's guess. None of them knows the truth, which does not come this far."""
    public = study(known, seed=seed, planted_tokens=budget.planted_tokens)
    profile = fit_profile(known, public)
    learned = [
        nearest(known, seen, public, seed=seed),
        ridge(known, seen, public, seed=seed),
        means(known, seen, public, seed=seed, profile=profile),
        *(
            inverter(known, seen, public, seed=seed, kind=kind, steps=budget.inverter_steps)
            for kind in budget.inverters
        ),
    ]
    yield from learned
    start = max(learned, key=lambda guess: guess.held_out or 0.0)
    yield refine(known, seen, start, profile, seed=seed, budget_tokens=budget.refined_tokens)
    if known.table is not None:
        yield table(known, seen, seed=seed)
    if known.causal:
        yield enumerate_vocabulary(known, seen, seed=seed, budget_tokens=budget.enumerated_tokens)
