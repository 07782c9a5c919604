"""Which language a step's batch comes from: exponent-smoothed shares, drawn by seed and step alone."""

import hashlib
from collections.abc import Mapping

from splitlearn.errors import ManifestError

__all__ = ["draw", "shares"]


def shares(sizes: Mapping[str, float], *, alpha: float) -> dict[str, float]:
    """p_i proportional to n_i ** alpha (Conneau and Lample 2019); a size is tokens, or a loss.

    alpha 1 keeps the languages as they are, 0 makes them alike. Raises ManifestError for no language,
    or one of no size.

    >>> shares({"en": 900, "sw": 100}, alpha=0.5)
    {'en': 0.75, 'sw': 0.25}
    """
    if not sizes or not all(size > 0 for size in sizes.values()):
        raise ManifestError(f"languages to mix need a size above 0 each; got {dict(sizes)}")
    smoothed = {name: size**alpha for name, size in sizes.items()}
    total = sum(smoothed.values())
    return {name: value / total for name, value in smoothed.items()}


def draw(chances: Mapping[str, float], *, seed: int, step: int) -> str:
    """The language of one step. Depends on names, chances, seed and step, on nothing before.

    >>> [draw({"en": 0.5, "sw": 0.5}, seed=1, step=step) for step in range(4)]
    ['en', 'sw', 'en', 'en']
    """
    digest = hashlib.sha256(f"mix {seed} {step}".encode()).digest()
    # 53 bits: a float holds them exactly, so the draw is the same on every machine.
    point = int.from_bytes(digest[:8], "big") / 2**64 * sum(chances.values())
    names = sorted(chances)
    for name in names[:-1]:
        if point < chances[name]:
            return name
        point -= chances[name]
    return names[-1]
