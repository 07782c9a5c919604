"""Ten steps, gradients clipped by their norm over all parties, against the unsplit model: to the bit."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.engine.events import Event, RolledBack, StepDone
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import freeze
from splitlearn.split.lora import adapt, blocks_of
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import LoraSpec
from tests.chains import chain_engine, chain_run, hosts, run_chain
from tests.exactness.test_engine import STEPS, batches, whole_weights
from tests.rig import run_in_memory, train_unsplit, trusted_run
from tests.tiny import tiny_model

CUT = Cut(1, 3)
# Shorter than the gradient of every step, so that each is scaled; and of some of them.
ALL, SOME = 0.05, 0.28
LORA = LoraSpec(4, 8.0, 0.0, ("attention.self.query", "attention.self.value"), 5)


def plain(
    whole: PreTrainedModel,
    run: TrustedRun,
    steps: Callable[[int], Sequence[Batch]],
    *,
    clip_norm: float | None,
) -> tuple[list[float], list[float | None]]:
    """Losses, and the norm of each step's gradient."""
    norms: list[float | None] = []

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            norms.append(event.norm)

    losses = train_unsplit(whole, run, steps=steps, observe=observe, clip_norm=clip_norm)
    return losses, norms


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.parametrize(
    ("family", "micro", "clip_norm", "train_bottom"),
    [
        ("bert", 1, ALL, True),
        ("distilbert", 3, SOME, True),
        ("electra", 2, ALL, False),
        ("gpt2", 2, ALL, True),
    ],
)
def test_a_clipped_split_run_is_the_clipped_unsplit_run(
    tmp_path: Path, family: str, micro: int, clip_norm: float, train_bottom: bool
) -> None:
    model = tiny_model(family)
    whole = copy.deepcopy(model)
    freeze(whole, cut=CUT, mode="full", train_bottom=train_bottom)
    run = trusted_run(model, cut=CUT, total=STEPS, train_bottom=train_bottom, clip_norm=clip_norm)
    steps = lambda step: batches(model, step, micro=micro)  # noqa: E731
    expected, norms = plain(whole, run, steps, clip_norm=clip_norm)
    clipped = sum(norm > clip_norm for norm in norms if norm is not None)
    assert (0 < clipped < STEPS) if clip_norm == SOME else clipped == STEPS
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == expected
    same(whole_weights(result, CUT, result.trunk), whole.state_dict())
    assert result.engine.sent[Kind.SCALE] > 0
    assert result.engine.received[Kind.NORM] > 0


def test_adapters_are_clipped_with_the_head(tmp_path: Path) -> None:
    model = tiny_model("bert")
    whole = copy.deepcopy(model)
    adapt(blocks_of(whole, cut=CUT, where="all", train_bottom=True), LORA)
    freeze(whole, cut=CUT, mode="lora", train_bottom=True)
    run = trusted_run(
        model, cut=CUT, total=STEPS, mode="lora", lora=LORA, where="all", clip_norm=ALL
    )
    steps = lambda step: batches(model, step)  # noqa: E731
    expected, norms = plain(whole, run, steps, clip_norm=ALL)
    assert min(norm for norm in norms if norm is not None) > ALL
    assert run_in_memory(tmp_path, run, steps=steps).losses == expected


def test_where_the_trunk_is_frozen_the_peer_is_not_asked(tmp_path: Path) -> None:
    model = tiny_model("bert")
    whole = copy.deepcopy(model)
    freeze(whole, cut=CUT, mode="features", train_bottom=False)
    run = trusted_run(
        model, cut=CUT, total=STEPS, mode="features", train_bottom=False, clip_norm=ALL
    )
    steps = lambda step: batches(model, step)  # noqa: E731
    expected, _ = plain(whole, run, steps, clip_norm=ALL)
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == expected
    assert not result.engine.sent[Kind.SCALE]
    assert not result.engine.received[Kind.NORM]


def test_a_chain_of_three_parties_has_one_norm(tmp_path: Path) -> None:
    model, cut = tiny_model("bert", layers=5), Cut(1, 4)
    whole = copy.deepcopy(model)
    freeze(whole, cut=cut, mode="full", train_bottom=True)
    run = chain_run(model, cut=cut, starts=(2, 3), total=STEPS, clip_norm=ALL)
    steps = lambda step: batches(model, step)  # noqa: E731
    expected, _ = plain(whole, run, steps, clip_norm=ALL)
    ended = run_chain(tmp_path, run, steps=steps)
    assert ended.losses == expected
    assert all(line.sent[Kind.SCALE] > 0 for line in ended.engine._lines)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_clipped_run_goes_on_after_a_kill_as_if_there_had_been_none(
    tmp_path: Path, killed: int
) -> None:
    model, cut = tiny_model("bert", layers=5), Cut(1, 4)
    whole = copy.deepcopy(model)
    freeze(whole, cut=cut, mode="full", train_bottom=True)
    run = chain_run(model, cut=cut, starts=(2,), total=5, every=2, clip_norm=ALL)
    steps = lambda step: batches(model, step)  # noqa: E731
    expected, _ = plain(whole, run, steps, clip_norm=ALL)
    parties, told, done = hosts(tmp_path, run), list[Event](), list[int]()

    def killing(step: int) -> Sequence[Batch]:
        if step == 3 and not done:
            done.append(step)
            parties[killed].killed()
        return steps(step)

    engine = chain_engine(tmp_path, run, parties, observe=told.append)
    engine.train(killing)
    engine.finish()
    engine.end(None)
    for host in parties:
        host.close()
    assert [e for e in told if isinstance(e, RolledBack)] == [RolledBack(f"host{killed}")]
    assert engine.losses == expected


def test_clipping_changes_what_is_learnt(tmp_path: Path) -> None:
    model = tiny_model("bert")
    run = trusted_run(copy.deepcopy(model), cut=CUT, total=3, clip_norm=ALL)
    steps = lambda step: batches(model, step)  # noqa: E731
    free, _ = plain(copy.deepcopy(model), run, steps, clip_norm=None)
    clipped, _ = plain(copy.deepcopy(model), run, steps, clip_norm=ALL)
    # Adam divides by the gradient's size, so only later steps show it.
    assert free[0] == clipped[0]
    assert free != clipped
