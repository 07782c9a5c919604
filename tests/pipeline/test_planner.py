"""The plan: best of all, within what is wanted, and honest about what a cut shows."""

from dataclasses import replace

import pytest

from splitlearn.pipeline.chain import Pipe
from splitlearn.pipeline.costs import Link, Setting, cost
from splitlearn.pipeline.planner import (
    Plan,
    Wanted,
    closed_forms,
    interleaved,
    late_messages,
    leakage,
    one,
    plan,
    settings,
)
from tests.pipeline.planning import GIVEN, LINK, PLAIN, SPEEDS

CODECS = [(a, a, g, g) for a in SPEEDS.codecs for g in SPEEDS.codecs]


def candidates(given: Setting = GIVEN, *, move_cuts: bool = True) -> list[Setting]:
    return list(settings(given, layers=SPEEDS.layers, codecs=CODECS, move_cuts=move_cuts))


def found(wanted: Wanted, *, link: Link = LINK) -> Plan:
    best, _ = plan(iter(candidates()), speeds=SPEEDS, link=link, wanted=wanted)
    assert best is not None
    return best


def test_candidates_show_the_peer_no_earlier_layer_and_no_gradient_nearer_to_the_labels() -> None:
    some = candidates()
    assert GIVEN in some
    assert {(c.first, c.last) for c in some} == {
        *((2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)),
    }
    assert {c.micro_batches for c in some} == {1, 2, 4, 8, 16, 32}
    assert all(c.in_flight <= 16 for c in some)
    assert len(set(some)) == len(some)
    assert {(c.first, c.last) for c in candidates(move_cuts=False)} == {(2, 5)}


def test_cuts_between_parties_of_a_chain_stay_and_the_outer_ones_keep_a_layer_for_each() -> None:
    chained = replace(GIVEN, first=1, starts=(3,), inner=("fp16", "int8"))
    some = candidates(chained)
    assert chained in some
    assert {c.starts for c in some} == {(3,)}
    assert {(c.first, c.last) for c in some} == {(1, 4), (1, 5), (2, 4), (2, 5)}
    between = {(c.codecs, c.inner) for c in some}
    assert (GIVEN.codecs, ("fp16", "int8")) in between
    assert (("int8", "int8", "fp16", "fp16"), ("int8", "fp16")) in between
    basis = ("pca-transform-e0.1", "pca-transform-e0.1", "fp16", "fp16")
    (kept,) = {c.inner for c in settings(chained, layers=6, codecs=[basis]) if c.codecs == basis}
    assert kept == chained.inner
    assert interleaved(one(chained, speeds=SPEEDS, link=LINK), speeds=SPEEDS, link=LINK) is None


def test_closed_forms_of_a_chain_count_its_stages_and_both_ways_of_a_relay() -> None:
    chained = one(replace(GIVEN, starts=(3, 4), inner=PLAIN[:2]), speeds=SPEEDS, link=LINK)
    closed = closed_forms(chained.costed.chain)
    assert closed.alone_s < closed.overlapped_s <= closed.blocking_s
    apart = replace(chained.costed.chain, relayed=False, between=Pipe())
    assert closed_forms(apart).overlapped_s < closed.overlapped_s


def test_a_batch_of_few_examples_is_cut_into_no_more() -> None:
    some = candidates(replace(GIVEN, batch=3, micro_batches=3))
    assert {c.micro_batches for c in some} == {1, 2, 3}


@pytest.mark.parametrize(
    "link", [LINK, Link.of(mbit=5, rtt_ms=80), Link.of(mbit=None, rtt_ms=0)], ids=str
)
@pytest.mark.parametrize("wanted", [Wanted(), Wanted(error=0.001), Wanted(step_bytes=700_000)])
def test_the_plan_is_the_best_of_all_that_keep_what_is_wanted(link: Link, wanted: Wanted) -> None:
    best, simulated = plan(iter(candidates()), speeds=SPEEDS, link=link, wanted=wanted)
    assert best is not None
    everything = [one(c, speeds=SPEEDS, link=link) for c in candidates()[::23]]
    for other in everything:
        figures = other.costed
        if wanted.error is not None and figures.error > wanted.error:
            continue
        if wanted.step_bytes is not None and other.step_bytes > wanted.step_bytes:
            continue
        assert best.step_s <= other.step_s * (1 + 1e-9)
    assert simulated <= len(candidates())
    assert wanted.error is None or best.costed.error <= wanted.error
    assert wanted.step_bytes is None or best.step_bytes <= wanted.step_bytes


def test_with_a_wanted_time_the_most_faithful_that_meets_it_is_taken() -> None:
    slow = Link.of(mbit=20, rtt_ms=20)
    unbound = found(Wanted(), link=slow)
    assert unbound.costed.error > 0
    generous = found(Wanted(step_s=60.0), link=slow)
    assert generous.costed.error == 0
    assert generous.step_s <= 60
    exact_s = found(Wanted(error=0.0), link=slow).step_s
    between = found(Wanted(step_s=(unbound.step_s + exact_s) / 2), link=slow)
    assert 0 < between.costed.error <= unbound.costed.error


@pytest.mark.parametrize("wanted", [Wanted(step_s=1e-6), Wanted(step_bytes=10), Wanted(error=-1.0)])
def test_there_may_be_no_such_setting(wanted: Wanted) -> None:
    best, simulated = plan(iter(candidates()), speeds=SPEEDS, link=LINK, wanted=wanted)
    assert (best, simulated) == (None, 0)


def test_a_slow_link_wants_codecs_and_a_long_one_a_window() -> None:
    assert found(Wanted(), link=Link.of(mbit=5, rtt_ms=0)).setting.codecs == ("int8",) * 4
    far = found(Wanted(), link=Link.of(mbit=1000, rtt_ms=200)).setting
    assert far.in_flight >= far.micro_batches


def test_the_closed_forms_bracket_an_overlapped_run_of_equal_stages() -> None:
    chain = replace(
        cost(GIVEN, speeds=SPEEDS, link=LINK).chain,
        bottom_s=0.1,
        top_s=0.3,
        bottom_backward_s=0.2,
        update_s=0.0,
    )
    closed = closed_forms(chain)
    assert closed.alone_s < closed.overlapped_s <= closed.blocking_s
    features = replace(chain, gradient=None, input_gradient=None)
    assert closed_forms(features).blocking_s > closed_forms(features).alone_s


@pytest.mark.parametrize(
    ("setting", "text", "labels"),
    [
        (GIVEN, "open: 100 of 100", "gradients leave"),
        (replace(GIVEN, lower=13), "open: 13 of 100", "gradients leave"),
        (replace(GIVEN, lower=12, gradients=False), "narrowed: 12 of 100", "no gradient leaves"),
    ],
)
def test_the_class_of_leakage_is_coarse(setting: Setting, text: str, labels: str) -> None:
    class_ = leakage(setting, width=100)
    assert class_.text.startswith(text)
    assert class_.labels.startswith(labels)


def test_a_message_that_cannot_meet_its_deadline_is_told() -> None:
    chain = replace(
        cost(GIVEN, speeds=SPEEDS, link=LINK).chain, up=Pipe(1e4, 0.0), down=Pipe(1e9, 0.0)
    )
    late = late_messages(chain, deadline_s=60.0)
    assert len(late) == 2
    assert "an output takes" in late[0]
    assert "run.deadline_s is 60" in late[1]
    assert late_messages(chain, deadline_s=1e6) == []
    chained = replace(GIVEN, starts=(3,), inner=PLAIN[:2])
    slow = Link(Pipe(1e4, 0.0), Pipe(1e9, 0.0))
    late = late_messages(cost(chained, speeds=SPEEDS, link=slow).chain, deadline_s=60.0)
    assert [said.split(" takes")[0] for said in late] == [
        f"{what} of compute party {n}"
        for n in (1, 2)
        for what in ("an output", "an input gradient")
    ]
    assert (
        len(late_messages(replace(chain, gradient=None, input_gradient=None), deadline_s=60)) == 1
    )


def test_a_plan_of_plain_codecs_says_its_bytes() -> None:
    plain = one(GIVEN, speeds=SPEEDS, link=LINK)
    assert plain.setting.codecs == PLAIN
    assert plain.step_bytes == plain.costed.up + plain.costed.down
