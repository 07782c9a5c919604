"""Does one number of each example that leaves tell its label? A watch over the newest examples.

A few plain statistics of an outgoing message are ranked against the true labels. It finds what is
crude: labels added to a state, gradients whose length or main direction says the class. Silence
proves nothing; the attacks on recorded payloads are the measure. Never keeps a text or an id, never
changes a message.
"""

# B examples, T padded tokens, N rows, D columns, U units (examples, or rows where each token has a
# label), W units in the window, S statistics, C classes

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from splitlearn.errors import RefusedError
from splitlearn.policy.content import Private
from splitlearn.policy.rules import Guard
from splitlearn.roles import Kind

__all__ = ["WATCHED", "LabelGuard"]

Floats: TypeAlias = NDArray[np.float32]
Whole: TypeAlias = NDArray[np.int64]

# Kinds that leave a trusted party and may carry labels.
WATCHED = frozenset({Kind.ACTIVATION, Kind.GRADIENT})


class LabelGuard:
    """Watches one party's outgoing rows, each kind by itself. For one thread at a time."""

    def __init__(self, table: Guard) -> None:
        self._table = table
        self._windows: dict[tuple[Kind, int], _Window] = {}
        self._told: set[Kind] = set()

    def look(self, x_ND: Floats, *, kind: Kind, private: Private, packed: bool) -> str | None:
        """A sentence the first time that a kind's rows tell the labels, if the policy says warn.

        packed: the rows are those of real tokens only. RefusedError if the policy says deny.
        """
        if kind not in WATCHED or kind in self._told:
            return None
        for number, label in enumerate(private.labels):
            key = (kind, number)
            if key not in self._windows:
                self._windows[key] = _Window(self._table.window)
            window = self._windows[key]
            with np.errstate(over="ignore", invalid="ignore"):
                if label.ndim == 1:
                    window.add(_examples(x_ND, private=private, packed=packed), label)
                else:
                    window.add(*_tokens(x_ND, label_BT=label, private=private, packed=packed))
                found = window.tells(self._table.label_correlation)
            if found is None:
                continue
            says = (
                f"{found.statistic} of an outgoing {kind} ranks the labels of the last {found.units} "
                f"{'examples' if label.ndim == 1 else 'tokens'} with an AUC of {found.auc:.2f} "
                f"(limit {self._table.label_correlation:g}): whoever gets it can read labels from it"
            )
            if self._table.action == "deny":
                raise RefusedError(
                    f"{says}; send no {kind}, or let [guard] in the policy warn only",
                    rule="guard.label_correlation",
                )
            self._told.add(kind)
            self._windows = {other: w for other, w in self._windows.items() if other[0] is not kind}
            return says
        return None


@dataclass(frozen=True)
class _Found:
    statistic: str
    auc: float
    units: int


@dataclass(frozen=True)
class _Units:
    """Each unit in figures (S, U) of these names, and as vectors, an array (U, D) for each direction."""

    figures: Floats
    vectors: tuple[Floats, ...]
    names: tuple[str, ...]
    directions: tuple[str, ...]


def _examples(x_ND: Floats, *, private: Private, packed: bool) -> _Units:
    width = private.ids.shape[1]
    sizes = np.array(private.lengths if packed else [width] * len(private.lengths))
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    sum_UD = np.add.reduceat(x_ND, starts, axis=0)
    mean_UD = (sum_UD / sizes[:, None]).astype(np.float32)
    first_UD = x_ND[starts]
    square_N = np.einsum("nd,nd->n", x_ND, x_ND)
    figures = (
        mean_UD.mean(axis=1),
        np.add.reduceat(square_N, starts),
        np.maximum.reduceat(x_ND.max(axis=1), starts),
        first_UD.mean(axis=1),
        square_N[starts],
    )
    return _Units(
        np.stack(figures),
        vectors=(mean_UD, first_UD),
        names=(*_TOKEN_FIGURES, "the first row's mean", "the first row's norm"),
        directions=("the main direction", "the first row's main direction"),
    )


def _tokens(
    x_ND: Floats, *, label_BT: NDArray[np.integer], private: Private, packed: bool
) -> tuple[_Units, NDArray[np.integer]]:
    """The rows that bear a label. What is below zero is none, by transformers' habit."""
    label_N = label_BT.reshape(-1)
    if packed:
        real_BT = np.arange(label_BT.shape[1]) < np.asarray(private.lengths)[:, None]
        label_N = label_N[real_BT.reshape(-1)]
    at = np.flatnonzero(label_N >= 0)
    x_UD = x_ND[at]
    figures = (x_UD.mean(axis=1), np.einsum("ud,ud->u", x_UD, x_UD), x_UD.max(axis=1))
    units = _Units(
        np.stack(figures),
        vectors=(x_UD,),
        names=_TOKEN_FIGURES,
        directions=("the main direction",),
    )
    return units, label_N[at]


_TOKEN_FIGURES = ("the mean", "the norm", "the largest value")


@dataclass
class _Window:
    """The newest units, oldest first overwritten."""

    size: int
    count: int = 0
    next: int = 0
    unseen: int = 0
    names: tuple[str, ...] = ()
    figures: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))
    vectors: list[Floats] = field(default_factory=list)
    directions: list[Floats] = field(default_factory=list)
    label: Whole = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, units: _Units, label_U: NDArray[np.integer]) -> None:
        """Take units in. Of more than fit, the last ones."""
        figures_SU, label_U = units.figures[:, -self.size :], label_U[-self.size :]
        if not self.vectors:
            self.names = (*units.names, *units.directions)
            self.figures = np.zeros((len(figures_SU), self.size), np.float32)
            self.vectors = [
                np.zeros((self.size, x_UD.shape[1]), np.float32) for x_UD in units.vectors
            ]
            self.directions = [np.ones(x_UD.shape[1], np.float32) for x_UD in units.vectors]
            self.label = np.zeros(self.size, np.int64)
        at = (self.next + np.arange(len(label_U))) % self.size
        self.figures[:, at] = figures_SU
        self.label[at] = label_U
        for held_WD, x_UD in zip(self.vectors, units.vectors, strict=True):
            held_WD[at] = x_UD[-self.size :]
        self.next = (self.next + len(label_U)) % self.size
        self.count = min(self.size, self.count + len(label_U))
        self.unseen += len(label_U)

    def tells(self, limit: float) -> _Found | None:
        """The statistic that ranks a class best, where its AUC is at the limit and is no accident."""
        if self.unseen < self.size // LOOKS:
            return None
        self.unseen = 0
        label_W = self.label[: self.count]
        classes, sizes = np.unique(label_W, return_counts=True)
        if len(classes) < 2:
            return None
        if len(classes) == 2:
            classes, sizes = classes[1:], sizes[1:]
        elif len(classes) > MAX_CLASSES:
            common = np.argsort(sizes)[-MAX_CLASSES:]
            classes, sizes = classes[common], sizes[common]
        others = self.count - sizes
        # The spread of the AUC of a statistic that knows nothing (Mann and Whitney 1947).
        error_C = np.sqrt((self.count + 1) / (12.0 * sizes * others))
        wanted_C = np.maximum(limit - 0.5, ACCIDENT * error_C)
        if wanted_C.min() > 0.5:  # too few of any class yet
            return None
        rank_SW = _ranks(np.concatenate((self.figures[:, : self.count], self._projections())))
        one_WC = (label_W[:, None] == classes).astype(np.float64)
        auc_SC = (rank_SW @ one_WC - sizes * (sizes + 1) / 2) / (sizes * others)
        apart_SC = np.abs(auc_SC - 0.5)
        apart_SC[apart_SC < wanted_C] = 0.0
        best, of = np.unravel_index(int(apart_SC.argmax()), apart_SC.shape)
        if apart_SC[best, of] == 0.0:
            return None
        return _Found(self.names[best], 0.5 + float(apart_SC[best, of]), self.count)

    def _projections(self) -> Floats:
        """Each unit on the window's main direction, one row for each kind of vector.

        The direction comes from the last look and a few steps of power iteration: it turns slowly.
        """
        rows = []
        for number, held_WD in enumerate(self.vectors):
            x_WD = held_WD[: self.count]
            v_D = self.directions[number]
            for _ in range(POWER_STEPS):
                # The mean is taken off the products, not off a copy of the window.
                along_W = x_WD @ v_D
                along_W -= along_W.sum() / np.float32(len(along_W))
                turned_D = along_W @ x_WD
                length = float(np.sqrt(turned_D @ turned_D))
                if length > 0.0 and np.isfinite(length):
                    v_D = (turned_D / length).astype(np.float32)
            self.directions[number] = v_D
            rows.append(x_WD @ v_D)  # a common shift moves no rank
        return np.stack(rows)


# From one look to the next the direction hardly moves.
POWER_STEPS = 2
# A look is worth its price when an eighth of the window is new.
LOOKS = 8
# One against the rest, for at most so many of the commonest classes.
MAX_CLASSES = 16
# Standard errors from 0.5 that no accident reaches: with 7 statistics, 16 classes and a look at each
# of a million messages, one false alarm is expected in a hundred such runs.
ACCIDENT = 6.5


def _ranks(figures_SW: Floats) -> NDArray[np.float64]:
    """Rank of each figure within its row, from 1; equal ones share their middle rank."""
    order_SW = np.argsort(figures_SW, axis=1)
    sorted_SW = np.take_along_axis(figures_SW, order_SW, axis=1)
    rank_SW = np.empty(figures_SW.shape, np.float64)
    np.put_along_axis(rank_SW, order_SW, np.arange(1.0, figures_SW.shape[1] + 1)[None], axis=1)
    for row in np.flatnonzero((sorted_SW[:, 1:] == sorted_SW[:, :-1]).any(axis=1)):
        _, of, counts = np.unique(figures_SW[row], return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        rank_SW[row] = (last - (counts - 1) / 2.0)[of]
    return rank_SW
