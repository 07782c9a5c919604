"""The simulation against closed forms where they hold, known timetables, and what must always be true."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pipeline.chain import Chain, Pipe, StageCosts
from splitlearn.pipeline.costs import limit_s
from splitlearn.pipeline.formulas import overlapped_s
from splitlearn.pipeline.schedule import ORDERS
from splitlearn.pipeline.simulate import simulate
from tests.pipeline.test_chain import chain, chains, relayed, seconds


def test_one_micro_batch_goes_there_and_back_twice() -> None:
    pipe = Pipe(800.0, 0.5)  # 100 bytes take a second
    found = simulate(chain(micro_batches=1, up=pipe, down=pipe, update_s=0.25), steps=1)
    assert found.ends_s == pytest.approx([1 + 1.5 + 1 + 1.5 + 3 + 1.5 + 2 + 1.5 + 2 + 0.25])
    assert found.busy_s("trusted") == pytest.approx(6.25)
    assert found.busy_s("trusted > compute") == pytest.approx(2.0)


def test_features_mode_sends_each_way_once() -> None:
    pipe = Pipe(800.0)
    found = simulate(
        chain(micro_batches=3, gradient=None, input_gradient=None, up=pipe, down=pipe, top_s=0.5),
        steps=1,
    )
    # bottoms end at 1, 2, 3; the wire, the trunk and the wire each take a second behind them
    assert found.ends_s == pytest.approx([6.5])
    assert found.busy_s("compute") == pytest.approx(3.0)
    assert {span.what for span in found.spans if span.lane == "compute"} == {"forward"}


@given(c=chains)
def test_no_step_is_shorter_than_the_busiest_or_longer_than_all_in_a_row(c: Chain) -> None:
    found = simulate(c, steps=2)
    lanes = {span.lane for span in found.spans}
    busy_s = [found.busy_s(lane) for lane in lanes]
    assert found.step_s >= max(busy_s) * (1 - 1e-9) or c.input_gradient is None
    delays_s = c.messages() * max(c.up.delay_s, c.down.delay_s)
    assert max(found.ends_s) / 2 <= sum(busy_s) + delays_s + 1e-9


@given(c=chains)
def test_one_forward_one_backward_is_as_quick_as_fill_drain_or_nearly(c: Chain) -> None:
    quick, slow = (
        simulate(replace(c, order=order), steps=3).step_s for order in ("1f1b", "fill-drain")
    )
    # One bottom's backward may be in the way of one top.
    assert quick <= slow + c.bottom_backward_s + c.top_s + 1e-9


@given(m=st.integers(1, 12), f=seconds, b=seconds, t=st.floats(0, 2))
def test_a_trusted_party_without_work_makes_it_a_chain_of_the_closed_form(
    m: int, f: float, b: float, t: float
) -> None:
    """One compute party with equal times each way is a stage; fill and drain are its transfers."""
    c = chain(
        micro_batches=m,
        in_flight=m,
        bottom_s=0.0,
        top_s=0.0,
        bottom_backward_s=0.0,
        stages=(StageCosts(f, b),),
        up=Pipe(None, t),
        down=Pipe(None, t),
    )
    # The delay is paid once each way and phase, however many messages are under way.
    busy_s, trip_s = m * (f + b), 2 * t
    found = simulate(c, steps=1).ends_s[0]
    assert found >= max(busy_s, f + b + 2 * trip_s) - 1e-9
    assert found <= busy_s + 2 * trip_s + 1e-9


@given(m=st.integers(1, 20), f=seconds, b=seconds)
def test_two_parties_with_free_links_follow_the_bubble(m: int, f: float, b: float) -> None:
    """Bottom and trunk as two equal stages, no top: fill-drain takes (m + 1) of each."""
    c = chain(
        micro_batches=m,
        in_flight=m,
        bottom_s=f,
        top_s=0.0,
        bottom_backward_s=b,
        stages=(StageCosts(f, b),),
        order="fill-drain",
    )
    wanted_s = overlapped_s(2, m, forward_s=f, backward_s=b, transfer_s=0.0)
    assert simulate(c, steps=1).ends_s[0] == pytest.approx(wanted_s)


@given(m=st.integers(1, 10), f=seconds, b=seconds, t=seconds)
def test_slow_wires_follow_the_overlapped_form_of_the_chain(
    m: int, f: float, b: float, t: float
) -> None:
    """No wire is shared between two hops where each way has one message a micro-batch."""
    c = chain(
        micro_batches=m,
        in_flight=m,
        bottom_s=f,
        top_s=0.0,
        bottom_backward_s=0.0,
        stages=(StageCosts(f, 0.0),),
        gradient=None,
        input_gradient=None,
        up=Pipe(800.0 / t),
        down=Pipe(None),
    )
    wanted_s = 2 * f + t + (m - 1) * max(f, t)
    assert simulate(c, steps=1).ends_s[0] == pytest.approx(wanted_s)


def test_a_small_window_pays_the_round_trip_again_and_again() -> None:
    pipe = Pipe(None, 5.0)
    steps = [
        simulate(chain(micro_batches=8, in_flight=w, up=pipe, down=pipe), steps=1).ends_s[0]
        for w in (1, 2, 4, 8)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] >= 8 * 10


def test_a_settlement_costs_a_round_trip_every_so_many_messages() -> None:
    far = chain(up=Pipe(None, 1.0), down=Pipe(None, 1.0))
    without, every = (
        simulate(replace(far, settle_messages=n), steps=4).ends_s[-1] for n in (0, far.messages())
    )
    assert every == pytest.approx(without + 4 * 2.0)


def test_a_second_compute_party_is_a_further_stage() -> None:
    one = chain(stages=(StageCosts(2.0, 4.0),))
    two = replace(
        one, stages=(StageCosts(1.0, 2.0), StageCosts(1.0, 2.0)), hops=(100,), back_hops=(100,)
    )
    whole, halves = simulate(one, steps=1), simulate(two, steps=1)
    assert halves.busy_s("compute 1") == halves.busy_s("compute 2") == whole.busy_s("compute") / 2
    assert halves.ends_s[0] < whole.ends_s[0]


@given(c=relayed)
def test_a_relaying_party_does_what_the_engines_schedule_says_in_that_order(c: Chain) -> None:
    done = [(s.what, s.micro_batch) for s in simulate(c, steps=1).spans if s.lane == "trusted"]
    actions = ORDERS[c.order](
        c.micro_batches,
        in_flight=c.in_flight,
        parties=len(c.stages),
        gradients=True,
        backward=c.input_gradient is not None,
    )
    assert done == [*((a.op.value, a.micro_batch) for a in actions), ("update", 0)]


@given(c=relayed)
def test_no_step_of_a_relayed_chain_beats_its_limit(c: Chain) -> None:
    found = simulate(c, steps=3)
    end_s = max(span.end_s for span in found.spans)
    assert end_s / 3 >= limit_s(c) * (1 - 1e-9)


def test_every_party_of_a_relayed_chain_is_settled_with_in_turn() -> None:
    two = chain(
        stages=(StageCosts(1.0, 2.0), StageCosts(1.0, 2.0)),
        hops=(100,),
        back_hops=(100,),
        relayed=True,
        up=Pipe(None, 1.0),
        down=Pipe(None, 1.0),
    )
    without, every = (
        simulate(replace(two, settle_messages=n), steps=4).ends_s[-1] for n in (0, two.messages())
    )
    assert every == pytest.approx(without + 4 * 2 * 2.0)


def test_the_norm_waits_for_the_last_gradient_and_costs_no_more_where_that_comes_anyway() -> None:
    pipe = Pipe(None, 5.0)
    frozen = chain(
        micro_batches=1, up=pipe, down=pipe, input_gradient=None, bottom_backward_s=0, update_s=0.25
    )
    alone, clipped = (simulate(replace(frozen, clips=c), steps=1) for c in (False, True))
    assert alone.ends_s == pytest.approx([1 + 5 + 1 + 5 + 3 + 0.25])
    # There with the gradient, two seconds of the trunk's backward, and back with the norm.
    assert clipped.ends_s == pytest.approx([1 + 5 + 1 + 5 + 3 + 5 + 2 + 5 + 0.25])
    whole = chain(micro_batches=1, up=pipe, down=pipe)
    first, second = (simulate(replace(whole, clips=c), steps=1).ends_s for c in (False, True))
    assert first == second


def test_a_trunk_updates_once_the_factor_is_there() -> None:
    late = Pipe(None, 5.0)
    c = chain(micro_batches=1, stages=(StageCosts(1.0, 2.0, 0.5),), up=late, clips=True)
    spans = simulate(c, steps=1).spans
    (own,) = [span for span in spans if span.lane == "compute" and span.what == "update"]
    # One there, three of the top, one more there, two of the trunk, the norm, and the factor.
    assert own.begin_s == pytest.approx(1 + 5 + 1 + 3 + 5 + 2 + 2 + 5)


@given(c=relayed)
def test_norms_of_a_relayed_chain_are_added_up_and_no_step_beats_its_limit(c: Chain) -> None:
    clipped = replace(c, clips=True)
    found = simulate(clipped, steps=3)
    end_s = max(span.end_s for span in found.spans)
    assert end_s / 3 >= limit_s(clipped) * (1 - 1e-9)
    assert limit_s(clipped) >= limit_s(c)
    assert len(found.ends_s) == 3


def test_a_staleness_of_one_halves_a_step_that_is_all_delay() -> None:
    """One micro-batch there and back twice; with two steps under way each round trip serves both."""
    far = Pipe(None, 50.0)
    c = chain(micro_batches=1, up=far, down=far)
    exact, stale = (simulate(replace(c, staleness=s), steps=21).step_s for s in (0, 1))
    assert exact == pytest.approx(200 + 9)
    assert stale == pytest.approx(100 + 9, rel=0.05)


def test_with_a_frozen_bottom_a_step_has_one_round_trip_and_a_staleness_halves_it() -> None:
    far = Pipe(None, 50.0)
    c = chain(
        micro_batches=1, up=far, down=far, gradient=100, input_gradient=None, bottom_backward_s=0
    )
    exact, stale = (simulate(replace(c, staleness=s), steps=21).step_s for s in (0, 1))
    assert 100 <= exact <= 100 + 8
    assert stale <= exact / 2 + 5


def test_without_delay_there_is_nothing_to_gain_but_the_peers_idle_time() -> None:
    c = chain(micro_batches=4)
    exact, stale = (simulate(replace(c, staleness=s), steps=9).step_s for s in (0, 1))
    busy_s = 4 * (1.0 + 3.0 + 2.0)
    assert busy_s - 1e-9 <= stale <= exact


@given(c=chains, staleness=st.integers(1, 4))
def test_interleaved_steps_are_no_shorter_than_the_busiest_allows(c: Chain, staleness: int) -> None:
    steps = 6
    found = simulate(replace(c, staleness=staleness), steps=steps)
    end_s = max(span.end_s for span in found.spans)
    assert end_s / steps >= limit_s(replace(c, staleness=staleness)) * (1 - 1e-9)
    assert found.ends_s == tuple(sorted(found.ends_s))


def test_a_stretch_ends_with_a_settlement() -> None:
    c = chain(micro_batches=1, staleness=1, settle_messages=12)
    found = simulate(c, steps=7)
    far = simulate(replace(c, up=Pipe(None, 10.0), down=Pipe(None, 10.0)), steps=7)
    drained = [b - a for a, b in zip(far.ends_s, far.ends_s[1:], strict=False)]
    assert len(found.ends_s) == 7
    # Of three steps a stretch, the first of the next pays two round trips.
    assert drained[2] > drained[1]
    assert drained[5] > drained[4]
