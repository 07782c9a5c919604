"""How well replaced tokens are told from the text's own."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["area_under_curve"]


def area_under_curve(scores: NDArray[np.floating], *, positive: NDArray[np.bool_]) -> float | None:
    """The chance that a positive scores above a negative, ties counting one half; exact.

    By ranks (Mann and Whitney 1947). None where all are of one kind.

    >>> import numpy as np
    >>> area_under_curve(np.array([0.1, 0.4, 0.4, 0.8]), positive=np.array([False, False, True, True]))
    0.875
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # The mean rank of each group of equal scores, times two, in whole numbers.
    twice = 2 * np.cumsum(counts) - counts + 1
    total = int(twice[group][positive].sum())
    return (total / 2 - positives * (positives + 1) / 2) / (positives * negatives)
