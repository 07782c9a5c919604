"""The norm over parties: exact, like torch's, and finite or the end of the run."""

import copy
import math
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from splitlearn.channel import pair
from splitlearn.engine.state import clipping
from splitlearn.engine.state.clipping import clip, factor_of, pieces, scale, square_of
from splitlearn.engine.state.optimiser import Stepper, build_stepper
from splitlearn.errors import ChannelError, ManifestError, PeerError
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.wire import frames
from splitlearn.wire.messages import Detail, Norm, ScheduleSpec
from tests.exactness.test_engine import batches
from tests.rig import (
    ADAMW,
    ComputeThread,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_model

FINITE = st.floats(min_value=0, max_value=1e298)


def model(*, scaled: float = 1.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
        (made(torch.randn(4, 7)).square().sum() * scaled).backward()
    return made


def stepper(made: nn.Module) -> Stepper:
    return build_stepper(
        made.parameters(), optimiser=ADAMW, schedule=ScheduleSpec("constant", 0, 10)
    )


@pytest.mark.parametrize("limit", [0.01, 1.0, 1e6])
@pytest.mark.parametrize("scaled", [0.0, 1.0, 1e8])
def test_clipping_agrees_with_torch(limit: float, scaled: float) -> None:
    ours, theirs = model(scaled=scaled), model(scaled=scaled)
    norm = clip(stepper(ours), limit=limit, step=0)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    assert norm == pytest.approx(float(expected), rel=1e-6)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_a_short_gradient_keeps_its_bits() -> None:
    ours = model()
    before = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
    clip(stepper(ours), limit=1e6, step=0)
    assert all(torch.equal(was, p.grad) for was, p in zip(before, ours.parameters(), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_ends_the_run(bad: float) -> None:
    ours = model()
    ours[0].weight.grad[1, 2] = bad
    assert square_of(ours.parameters()) is None
    with pytest.raises(ManifestError, match=r"step 7 is not finite.*learning_rate"):
        clip(stepper(ours), limit=1.0, step=7)


def test_what_does_not_train_has_no_norm() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert square_of(frozen.parameters()) == 0
    assert clip(stepper(frozen), limit=1.0, step=0) == 0


@given(st.lists(FINITE, max_size=30), st.integers(0, 30))
def test_the_sum_is_exact_however_it_is_shared_out(squares: list[float], at: int) -> None:
    whole = sum(map(Fraction, squares), Fraction())
    shared = [squares[:at], squares[at:]]
    parts = [pieces(sum(map(Fraction, part), Fraction())) for part in shared]
    assert sum((Fraction(x) for part in parts for x in part), Fraction()) == whole
    for part in parts:
        assert list(part) == sorted(part, reverse=True)
        frame = frames.decode(frames.encode(Kind.NORM, seq=1, meta=Norm(0, part)))
        assert frame.meta == Norm(0, part)


def test_the_widest_sum_there_is_has_room_in_a_message() -> None:
    every = sum((Fraction(2.0**exponent) for exponent in range(-1074, 996)), Fraction())
    assert len(pieces(every)) <= 40


@given(FINITE, st.floats(min_value=1e-9, max_value=1e6))
def test_a_factor_is_never_more_than_one_and_leaves_no_more_than_the_limit(
    square: float, limit: float
) -> None:
    factor = factor_of(Fraction(square), limit=limit)
    assert 0 <= factor <= 1
    assert factor * math.sqrt(square) <= limit * (1 + 1e-12)


def test_scaling_is_the_same_multiplication_everywhere() -> None:
    ours = model()
    theirs = copy.deepcopy([p.grad for p in ours.parameters()])
    scale(ours.parameters(), 0.3)
    for p, before in zip(ours.parameters(), theirs, strict=True):
        assert p.grad is not None
        assert before is not None
        assert torch.equal(p.grad, before * 0.3)


@pytest.mark.parametrize(
    "unlike",
    [{"clip_norm": None}, {"detail": Detail()}, {"staleness": 1}, {"mode": "features"}],
    ids=str,
)
def test_a_run_and_its_offers_say_the_same_of_clipping(
    tmp_path: Path, unlike: dict[str, Any]
) -> None:
    run = trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=2, clip_norm=1.0)
    offer = run.offer
    if "staleness" in unlike:
        unlike = {"schedule": msgspec.structs.replace(offer.schedule, **unlike)}
    clip_norm = unlike.pop("clip_norm", 1.0)
    other = replace(run, clip_norm=clip_norm, offer=msgspec.structs.replace(offer, **unlike))
    with pytest.raises(ManifestError, match="clip_norm"):
        trusted_engine(other, trusted_party(tmp_path), pair()[0])


def test_a_trunk_whose_gradient_is_not_finite_ends_the_run_at_both_parties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate refuses such rows, so it takes a gradient that only the trunk's weights have."""
    model = tiny_model("bert")
    run = trusted_run(model, cut=Cut(1, 3), total=3, clip_norm=1.0, deadline_s=3)
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)
    engine = trusted_engine(run, trusted_party(tmp_path), ours)
    measured = clipping.square_of

    def spoilt(parameters: list[nn.Parameter]) -> Fraction | None:
        if threading.current_thread() is thread:
            grad = parameters[-1].grad
            assert grad is not None
            grad[-1] = math.inf
        return measured(parameters)

    monkeypatch.setattr(clipping, "square_of", spoilt)
    # Whether its last input gradient still left, beside the sums, before it gave up is a matter of luck.
    with pytest.raises(ChannelError, match=r"awaited (norm|input_gradient) of step"):
        engine.train(lambda step: batches(model, step))
    thread.join(20)
    assert isinstance(thread.error, PeerError)
    assert "step 0 by the trunk's weights is not finite" in str(thread.error)
