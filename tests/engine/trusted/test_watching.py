"""Scores during training: a run that watches is the run that does not, and patience ends it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from splitlearn.channel import pair
from splitlearn.engine.events import Event, Watched
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.trusted.watching import Watch
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import Mode
from tests.exactness.test_engine import batches
from tests.rig import (
    ComputeThread,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_model

CUT, TOTAL = Cut(1, 3), 8


def train(
    folder: Path, watch: Watch | None, *, mode: Mode = "full", told: list[Event] | None = None
) -> list[float]:
    model = tiny_model("bert", dropout=0.1)
    run = trusted_run(
        tiny_model("bert", dropout=0.1), cut=CUT, total=TOTAL, mode=mode, train_bottom=False
    )
    party, other = trusted_party(folder), compute_party(folder)
    ours, theirs = pair()
    thread = ComputeThread(other, theirs)
    events = [] if told is None else told
    engine = trusted_engine(run, party, ours, observe=events.append)
    engine.train(lambda step: batches(model, step), watch=watch)
    engine.finish()
    thread.join(20)
    assert thread.error is None
    for each in (party, other):
        each.log.close()
    return engine.losses


def watch_of(
    scores: Sequence[float],
    *,
    every: int = 2,
    patience: int | None = None,
    lower: bool = False,
    keeps: bool = False,
) -> Watch:
    """Scores as given, one after the other, of real outputs."""
    left = iter(scores)

    def score(outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        assert [len(output["logits"]) for output in outputs] == [3, 3]
        return {"first": next(left), "second": -1.0}

    return Watch(
        batches(tiny_model("bert"), 99),
        every=every,
        score=score,
        patience=patience,
        lower=lower,
        keeps=keeps,
    )


def found_in(watch: Watch) -> list[tuple[int, float]]:
    return [(step, scores["first"]) for step, scores in watch.found]


@pytest.mark.parametrize("mode", ["full", "features"])
def test_a_run_that_is_watched_is_the_run_that_is_not(tmp_path: Path, mode: Mode) -> None:
    told: list[Event] = []
    watch = watch_of([0.1, 0.2, 0.3, 0.4])
    watched = train(tmp_path / "one", watch, mode=mode, told=told)
    assert watched == train(tmp_path / "two", None, mode=mode)
    assert found_in(watch) == [(2, 0.1), (4, 0.2), (6, 0.3), (8, 0.4)]
    assert [e for e in told if isinstance(e, Watched)] == [Watched(*p) for p in found_in(watch)]


def test_patience_ends_a_run_with_a_checkpoint_and_it_stays_ended(tmp_path: Path) -> None:
    losses = train(tmp_path, watch_of([0.5, 0.4, 0.5], patience=2))
    assert len(losses) == 6
    for party in ("clinic", "gpuhost"):
        held = Checkpoints(tmp_path / party / "checkpoints")
        assert held.held()[-1] == 6
    noted = Checkpoints(tmp_path / "clinic" / "checkpoints").noted(6)
    assert noted["stopped"] is True
    scores = [[2, 0.5], [4, 0.4], [6, 0.5]]
    assert noted["scores"] == [[step, {"first": v, "second": -1.0}] for step, v in scores]
    again = watch_of([], patience=2)
    assert train(tmp_path, again) == losses
    assert found_in(again)[-1] == (6, 0.5)


@pytest.mark.parametrize(("lower", "best"), [(False, 4), (True, 6)])
def test_both_keep_the_state_with_the_best_score_and_the_losses_stay(
    tmp_path: Path, lower: bool, best: int
) -> None:
    scores = [0.4, 0.9, 0.2, 0.3]
    watch = watch_of(scores, lower=lower, keeps=True)
    losses = train(tmp_path / "one", watch)
    assert losses == train(tmp_path / "two", watch_of(scores))
    assert (watch.best, watch.scores["first"]) == (best, scores[best // 2 - 1])
    for party in ("clinic", "gpuhost"):
        held = Checkpoints(tmp_path / "one" / party / "checkpoints").held()
        assert {best, 8} <= set(held)
        assert len(held) <= 3
    assert Checkpoints(tmp_path / "one" / "clinic" / "checkpoints").best()[-1] == best
    # Begun again, a run that is over asks for nothing and knows its best.
    again = watch_of([], lower=lower, keeps=True)
    assert train(tmp_path / "one", again) == losses
    assert again.best == best


def test_only_a_better_score_renews_patience() -> None:
    watch = watch_of([], patience=2)
    for values, over in (
        ([], False),
        ([0.5], False),
        ([0.5, 0.5], False),
        ([0.5, 0.5, 0.5], True),
        ([0.5, 0.4, 0.6, 0.5], False),
    ):
        found = saved(values)
        watch.restore(found)
        assert watch.stopped is over
        assert watch.state() == found
    watch.restore(None)
    assert watch.found == []
    endless = watch_of([])
    endless.restore(saved([0.5, 0.1, 0.1, 0.1]))
    assert not endless.stopped


def test_of_equal_scores_the_first_is_the_best_and_none_is_where_none_is_kept() -> None:
    watch = watch_of([], keeps=True)
    assert (watch.best, watch.scores) == (None, {})
    watch.restore(saved([0.4, 0.5, 0.5]))
    assert (watch.best, watch.scores) == (2, {"first": 0.5})
    other = watch_of([])
    other.restore(saved([0.4, 0.5]))
    assert (other.best, other.scores) == (None, {})


def saved(values: Sequence[float]) -> list[list[object]]:
    return [[step, {"first": value}] for step, value in enumerate(values, 1)]
