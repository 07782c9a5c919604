"""Evaluation during training, and when it says that the run has learnt enough."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from splitlearn.manifest import Job
from splitlearn.tasks import Encoded, Scorer
from splitlearn.tasks.batches import Batch

__all__ = ["Watch", "asked_for"]


class Watch:
    """Held-out batches that are scored every so many steps; it evaluates nothing itself.

    score: of the outputs for all `batches`, in order, by name, the first of which is looked at; lower:
    whether less of it is better. patience: evaluations in a row without a better one that end the run;
    None: it goes on to its end. keeps: whether the state with the best score is kept. found: steps done,
    and scores.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        *,
        every: int,
        score: Callable[[Sequence[Mapping[str, Tensor]]], Mapping[str, float]],
        patience: int | None = None,
        lower: bool = False,
        keeps: bool = False,
    ) -> None:
        self.batches = batches
        self.found: list[tuple[int, dict[str, float]]] = []
        self._every, self._score, self._patience = every, score, patience
        self._keeps = keeps
        self._choose = min if lower else max

    def due(self, done: int) -> bool:
        """Whether to evaluate after so many steps."""
        return done % self._every == 0

    def take(self, done: int, outputs: Sequence[Mapping[str, Tensor]]) -> float:
        """Score what came out after so many steps."""
        scores = dict(self._score(outputs))
        self.found.append((done, scores))
        return _first(scores)

    @property
    def best(self) -> int | None:
        """The step whose state is to be kept: the first with the best score. None where none is."""
        return self.found[self._at_best()][0] if self._keeps and self.found else None

    @property
    def scores(self) -> dict[str, float]:
        """All scores of the step that is kept; none where none is."""
        return self.found[self._at_best()][1] if self._keeps and self.found else {}

    @property
    def stopped(self) -> bool:
        """Whether patience is at its end."""
        if self._patience is None or not self.found:
            return False
        return len(self.found) - 1 - self._at_best() >= self._patience

    def _at_best(self) -> int:
        values = [_first(scores) for _, scores in self.found]
        return values.index(self._choose(values))

    def state(self) -> list[list[object]]:
        """For a checkpoint, as JSON takes it."""
        return [[step, scores] for step, scores in self.found]

    def restore(self, state: object) -> None:
        """Go on from what `state` gave; from nothing where a checkpoint has none."""
        pairs = state if isinstance(state, list) else []
        self.found = [(int(step), dict(scores)) for step, scores in pairs]


def _first(scores: Mapping[str, float]) -> float:
    return next(iter(scores.values()))


def asked_for(job: Job, held_out: Encoded | None, batches: Sequence[Batch]) -> Watch | None:
    """The scores during training that the job asks for, of its held-out data; None where it does not."""
    schedule = job.schedule
    if schedule.evaluate_every is None or held_out is None:
        return None

    def score(outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        scorer = Scorer(held_out)
        for each in outputs:
            scorer.add(each)
        return scorer.result()

    return Watch(
        batches,
        every=schedule.evaluate_every,
        score=score,
        patience=schedule.patience,
        # Of all tasks' first scores this one alone is a loss.
        lower=job.model.task == "causal-language-modelling",
        keeps=job.keeps_best,
    )
