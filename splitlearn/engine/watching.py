"""Evaluation during training, and when it says that the run has learnt enough."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from splitlearn.manifest import Job
from splitlearn.tasks import Scorer
from splitlearn.tasks.batches import Batch

if TYPE_CHECKING:
    from splitlearn.engine.examples import Data

__all__ = ["Watch", "asked_for"]


class Watch:
    """Held-out batches that are scored every so many steps; it evaluates nothing itself.

    score: of the outputs for all `batches`, in order; lower: whether less of it is better. patience:
    evaluations in a row without a better one that end the run; None: it goes on to its end. found: steps
    done, and score.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        *,
        every: int,
        score: Callable[[Sequence[Mapping[str, Tensor]]], float],
        patience: int | None = None,
        lower: bool = False,
    ) -> None:
        self.batches = batches
        self.found: list[tuple[int, float]] = []
        self._every, self._score, self._patience = every, score, patience
        self._best = min if lower else max

    def due(self, done: int) -> bool:
        """Whether to evaluate after so many steps."""
        return done % self._every == 0

    def take(self, done: int, outputs: Sequence[Mapping[str, Tensor]]) -> float:
        """Score what came out after so many steps."""
        value = self._score(outputs)
        self.found.append((done, value))
        return value

    @property
    def stopped(self) -> bool:
        """Whether patience is at its end."""
        if self._patience is None or not self.found:
            return False
        scores = [value for _, value in self.found]
        return len(scores) - 1 - scores.index(self._best(scores)) >= self._patience

    def state(self) -> list[list[float]]:
        """For a checkpoint, as JSON takes it."""
        return [[step, value] for step, value in self.found]

    def restore(self, state: object) -> None:
        """Go on from what `state` gave; from nothing where a checkpoint has none."""
        pairs = state if isinstance(state, list) else []
        self.found = [(int(step), float(value)) for step, value in pairs]


def asked_for(job: Job, data: "Data") -> Watch | None:
    """The scores during training that the job asks for, the first of its task's; None where it does not."""
    schedule, held_out = job.schedule, data.held_out
    if schedule.evaluate_every is None or held_out is None:
        return None

    def score(outputs: Sequence[Mapping[str, Tensor]]) -> float:
        scorer = Scorer(held_out)
        for each in outputs:
            scorer.add(each)
        return next(iter(scorer.result().values()))

    return Watch(
        data.evaluation,
        every=schedule.evaluate_every,
        score=score,
        patience=schedule.patience,
        # Of all tasks' first scores this one alone is a loss.
        lower=job.model.task == "causal-language-modelling",
    )
