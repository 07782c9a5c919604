"""Wires and credit: one thing at a time, the right wire for each hop, and a sender that has to wait."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given

from splitlearn.pipeline.chain import Chain, Pipe, StageCosts
from splitlearn.pipeline.simulate import simulate
from tests.pipeline.test_chain import chain, chains, relayed


@given(c=chains | relayed)
def test_nobody_and_no_wire_does_two_things_at_once(c: Chain) -> None:
    found = simulate(c, steps=2)
    for lane in {span.lane for span in found.spans}:
        spans = sorted((s.begin_s, s.end_s) for s in found.spans if s.lane == lane)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))


def test_credit_holds_a_sender_back_and_a_window_of_too_few_is_found_out() -> None:
    fast = chain(micro_batches=8, in_flight=8, up=Pipe(None, 1.0), down=Pipe(None, 1.0))
    wide, narrow = (simulate(replace(fast, window=w), steps=2).step_s for w in (32, 8))
    assert wide <= narrow
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(replace(fast, window=2))


def test_a_relayed_hop_takes_two_links_and_a_direct_one_takes_its_own() -> None:
    two = chain(
        micro_batches=1,
        stages=(StageCosts(1.0, 2.0), StageCosts(1.0, 2.0)),
        hops=(100,),
        back_hops=(100,),
        up=Pipe(800.0),
        down=Pipe(800.0),
        between=Pipe(8000.0),
        relay_s=0.125,
        relay_backward_s=0.125,
    )
    direct, through_us = (
        simulate(replace(two, relayed=way), steps=1).ends_s[0] for way in (False, True)
    )
    assert direct == pytest.approx(1 + 1 + 1 + 0.1 + 1 + 1 + 3 + 1 + 2 + 0.1 + 2 + 1 + 2)
    assert through_us == pytest.approx(direct + 2 * (2.125 - 0.1))
