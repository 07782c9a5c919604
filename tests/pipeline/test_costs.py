"""A setting in figures, against sums done by hand and against the simulation."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.engine.conversation.talk import SETTLE_MESSAGES
from splitlearn.engine.trusted.run import IN_FLIGHT
from splitlearn.pipeline.chain import Pipe
from splitlearn.pipeline.costs import Link, chain_of, cost, limit_s
from splitlearn.pipeline.simulate import simulate
from splitlearn.session import MAX_UNSETTLED
from tests.pipeline.planning import GIVEN, LINK, PLAIN, SPEEDS

modes = st.sampled_from([(False, False), (True, False), (True, True)])


def test_a_link_is_the_same_both_ways_unless_said_otherwise() -> None:
    assert Link(Pipe(100e6, 0.01), Pipe(100e6, 0.01)) == LINK
    assert Link.of(mbit=10, rtt_ms=4, mbit_back=20).down == Pipe(20e6, 0.002)
    assert Link.of(mbit=None, rtt_ms=0).up == Pipe()
    assert LINK.round_trip_s == 0.02


def test_the_figures_of_a_chain_are_sums_of_layers_messages_and_codecs() -> None:
    chain = chain_of(GIVEN, speeds=SPEEDS, link=LINK)
    padded, floats = 8 * 50.0, 4 * 8 * 40.0 * 100
    layer_s, back_s, coding_s = 1e-3 + 1e-5 * padded, 2e-3 + 2e-5 * padded, floats / 1e10
    out_s, in_s = 1e-3 + 1e-9 * floats + coding_s, 1e-3 + coding_s
    assert chain.bottom_s == pytest.approx(2 * layer_s + out_s)
    assert chain.top_s == pytest.approx(layer_s + back_s + 1e-3 + 1e-6 * padded + in_s + out_s)
    assert chain.bottom_backward_s == pytest.approx(2 * back_s + 5e-4 + 1e-6 * padded + in_s)
    assert chain.stages[0].forward_s == pytest.approx(3 * layer_s + in_s + out_s)
    assert chain.stages[0].backward_s == pytest.approx(3 * back_s + in_s + out_s)
    assert (chain.update_s, chain.stages[0].update_s) == pytest.approx((3e-3, 3e-3))
    assert chain.output == pytest.approx(floats, rel=0.02)
    assert chain.activation - chain.output == pytest.approx(2 * 8, abs=1)


def test_codecs_ranks_and_modes_decide_the_bytes() -> None:
    narrow = replace(GIVEN, lower=10, upper=5, codecs=("int8", "fp16", "fp16", "int8"))
    found = cost(narrow, speeds=SPEEDS, link=LINK)
    values = 32 * 40.0
    assert found.up == pytest.approx(values * (10 + 2 * 5), rel=0.15)
    assert found.down == pytest.approx(values * (2 * 5 + 10), rel=0.15)
    assert found.error == 0.01
    features = replace(
        narrow, gradients=False, returns=False, codecs=("fp16", "fp16", "int8", "int8")
    )
    found = cost(features, speeds=SPEEDS, link=LINK)
    assert found.up == pytest.approx(values * 2 * 10, rel=0.1)
    assert found.error == 0.0002
    assert found.chain.gradient is None
    assert found.chain.stages[0].update_s == 0
    assert found.largest == found.chain.activation


def test_a_frozen_bottom_gets_no_gradient_and_no_update() -> None:
    found = cost(replace(GIVEN, returns=False), speeds=SPEEDS, link=LINK)
    assert found.chain.input_gradient is None
    assert found.chain.update_s == pytest.approx(1e-3)
    assert found.down == 4 * found.chain.output


def test_clipping_is_of_jobs_whose_gradients_leave() -> None:
    far = Link.of(mbit=100, rtt_ms=400)
    frozen, clipped = (
        cost(replace(GIVEN, returns=False, clips=clips), speeds=SPEEDS, link=far)
        for clips in (False, True)
    )
    assert clipped.limit_s >= frozen.limit_s + 0.4
    features = replace(GIVEN, gradients=False, returns=False, clips=True)
    assert not cost(features, speeds=SPEEDS, link=far).chain.clips


def test_a_step_of_kept_outputs_is_the_trusted_partys_own_work() -> None:
    features = replace(GIVEN, gradients=False, returns=False)
    assert cost(features, speeds=SPEEDS, link=LINK).kept_s is None
    kept_s = cost(replace(features, keeps=True), speeds=SPEEDS, link=LINK).kept_s
    padded = 8 * 50.0
    layer_s, back_s = 1e-3 + 1e-5 * padded, 2e-3 + 2e-5 * padded
    assert kept_s == pytest.approx(4 * (layer_s + back_s + 1e-3 + 1e-6 * padded) + 1e-3)


FARMED = replace(GIVEN, starts=(3,), inner=("fp16", "int8"), codecs=PLAIN)


def test_a_chain_shares_the_trunk_out_and_what_lies_between_is_paid_twice() -> None:
    alone, shared = (cost(one, speeds=SPEEDS, link=LINK) for one in (GIVEN, FARMED))
    chain, floats = shared.chain, 4 * 8 * 40.0 * 100
    assert chain.relayed
    assert [stage.update_s for stage in chain.stages] == pytest.approx([1e-3, 2e-3])
    assert chain.stages[1].forward_s > chain.stages[0].forward_s
    assert chain.hops[0] == pytest.approx(floats / 2, rel=0.05)
    assert chain.back_hops[0] == pytest.approx(floats / 4, rel=0.1)
    between = 4 * (chain.hops[0] + chain.back_hops[0])
    assert (shared.up - alone.up, shared.down - alone.down) == (between, between)
    assert (alone.error, shared.error) == (0.0, 0.01)
    assert (chain.bottom_s, chain.top_s) == (alone.chain.bottom_s, alone.chain.top_s)
    in_s = [1e-3 + floats / (1e6 * mb_s) for mb_s in (5e3, 1e3)]
    out_s = [1e-3 + 1e-9 * floats + floats / (1e6 * mb_s) for mb_s in (5e3, 1e3)]
    assert chain.relay_s == pytest.approx(in_s[0] + out_s[0])
    assert chain.relay_backward_s == pytest.approx(in_s[1] + out_s[1])


def test_a_direct_chain_pays_for_what_lies_between_on_no_link_of_the_trusted_party() -> None:
    slow_back = Link.of(mbit=100, rtt_ms=20, mbit_back=50)
    alone, direct = (
        cost(one, speeds=SPEEDS, link=slow_back) for one in (GIVEN, replace(FARMED, direct=True))
    )
    chain, relayed = direct.chain, cost(FARMED, speeds=SPEEDS, link=slow_back).chain
    assert not chain.relayed
    assert (direct.up, direct.down) == (alone.up, alone.down)
    assert (chain.hops, chain.back_hops) == (relayed.hops, relayed.back_hops)
    assert chain.between == slow_back.down
    assert direct.largest >= chain.hops[0]
    assert direct.limit_s <= simulate(chain).step_s < simulate(relayed).step_s


def test_a_chain_without_gradients_relays_none() -> None:
    found = cost(replace(FARMED, gradients=False, returns=False), speeds=SPEEDS, link=LINK)
    assert found.chain.back_hops == ()
    assert found.error == 0.0002  # the codec of gradients is not used
    assert found.limit_s <= simulate(found.chain).step_s


def test_with_many_micro_batches_a_chain_comes_near_its_limit() -> None:
    slow = Link.of(mbit=10, rtt_ms=20)
    found = cost(replace(FARMED, micro_batches=8), speeds=SPEEDS, link=slow)
    assert found.limit_s <= simulate(found.chain).step_s <= 1.2 * found.limit_s


def test_a_codec_without_figures_is_named() -> None:
    with pytest.raises(KeyError, match="bf16"):
        cost(replace(GIVEN, codecs=("bf16", *PLAIN[1:])), speeds=SPEEDS, link=LINK)


@settings(max_examples=40)
@given(
    mode=modes,
    m=st.sampled_from([1, 2, 4, 8, 16, 32]),
    w=st.sampled_from([1, 2, 4, 8, 16]),
    first=st.integers(1, 4),
    mbit=st.none() | st.floats(1, 1000),
    rtt_ms=st.floats(0, 200),
    factor=st.floats(0.1, 10),
    staleness=st.integers(0, 2),
    clips=st.booleans(),
)
def test_no_schedule_beats_the_limit(
    mode: tuple[bool, bool],
    m: int,
    w: int,
    first: int,
    mbit: float | None,
    rtt_ms: float,
    factor: float,
    staleness: int,
    clips: bool,
) -> None:
    layer_s, backward_s = SPEEDS.trusted.layer, SPEEDS.trusted.layer_backward
    peer = SPEEDS.trusted.model_copy(
        update={
            "layer": tuple(x * factor for x in layer_s),
            "layer_backward": tuple(x * factor for x in backward_s),
        }
    )
    setting = replace(
        GIVEN, gradients=mode[0], returns=mode[1], micro_batches=m, in_flight=w, first=first
    )
    chain = chain_of(
        setting,
        speeds=SPEEDS.model_copy(update={"compute": peer}),
        link=Link.of(mbit=mbit, rtt_ms=rtt_ms),
    )
    clips = clips and mode[0] and not staleness
    chain = replace(chain, settle_messages=0, staleness=staleness, clips=clips)
    for order in ("1f1b", "fill-drain"):
        found = simulate(replace(chain, order=order), steps=4)
        # Without an input gradient the peer is done with a step after the trusted party.
        end_s = max(span.end_s for span in found.spans)
        assert max(end_s, found.ends_s[-1]) / 4 >= limit_s(chain) * (1 - 1e-9)


def test_with_many_micro_batches_on_a_slow_link_the_limit_is_nearly_reached() -> None:
    found = cost(replace(GIVEN, micro_batches=8), speeds=SPEEDS, link=Link.of(mbit=10, rtt_ms=20))
    assert simulate(found.chain).step_s <= 1.1 * found.limit_s


def test_the_planner_knows_the_channels_window_and_the_engines_settling() -> None:
    chain = chain_of(GIVEN, speeds=SPEEDS, link=LINK)
    assert (chain.window, chain.settle_messages) == (DEFAULT_WINDOW, SETTLE_MESSAGES)
    assert GIVEN.in_flight == IN_FLIGHT
    stale = chain_of(replace(GIVEN, staleness=2), speeds=SPEEDS, link=LINK)
    assert (stale.staleness, stale.settle_messages) == (2, MAX_UNSETTLED)
