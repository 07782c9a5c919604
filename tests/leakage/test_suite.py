import dataclasses

import pytest

from splitlearn.leakage import SUITE_VERSION, Budget, Seen, TextReport, Truth, attack_text
from tests.leakage.room import decoder, embeddings, encoder, known_of, noise, victim

SMALL = Budget(
    inverters=("mlp", "transformer"),
    inverter_steps=10,
    planted_tokens=3000,
    refined_tokens=20_000,
)
LEARNED = {"nearest", "ridge", "means", "inverter-mlp", "inverter-transformer", "refine"}


def without_seconds(report: TextReport) -> TextReport:
    attacks = tuple(
        dataclasses.replace(
            found, budget={key: value for key, value in found.budget.items() if key != "seconds"}
        )
        for found in report.attacks
    )
    return dataclasses.replace(report, best=attacks[0], attacks=attacks)


def test_the_headline_is_the_strongest_attack_and_stands_beside_the_baselines() -> None:
    known = encoder(layers=2, rank=4)
    seen, truth = victim(known)
    report = attack_text(known, seen, truth, seed=0, budget=SMALL)
    assert report.suite_version == SUITE_VERSION
    assert report.best == report.attacks[0]
    assert report.best.top1 == max(found.top1 for found in report.attacks)
    assert {found.attack for found in report.attacks} == LEARNED
    assert [found.attack for found in report.baselines] == ["most-frequent", "random"]
    assert report.best.top1 > report.baselines[0].top1 + 0.2


def test_cut_0_adds_the_table_and_a_causal_model_the_enumeration() -> None:
    for known, more in ((encoder(layers=0, rank=8), "table"), (decoder(rank=4), "enumerate")):
        seen, truth = victim(known, count=8)
        report = attack_text(known, seen, truth, seed=0, budget=SMALL)
        assert {found.attack for found in report.attacks} == {*LEARNED, more}
        (exact,) = (found for found in report.attacks if found.attack == more)
        assert exact.top1 == report.best.top1 == 1.0


def test_rows_of_noise_give_the_baseline_however_many_attacks_run() -> None:
    known = known_of(noise(columns=8), embeddings(), expand=lambda rows: rows @ embeddings()[:8])
    seen, truth = victim(known, count=150)
    report = attack_text(known, seen, truth, seed=0, budget=SMALL)
    assert report.best.top1 < report.baselines[0].top1 + 0.06


def test_the_same_seed_gives_the_same_report() -> None:
    known = encoder(layers=1, rank=4)
    seen, truth = victim(known, count=6)
    a, b = (attack_text(known, seen, truth, seed=3, budget=SMALL) for _ in range(2))
    assert without_seconds(a) == without_seconds(b)
    assert {found.seed for found in a.attacks} == {3}


def test_rows_of_other_texts_than_the_truth_are_our_own_mistake() -> None:
    known = encoder(layers=1)
    seen, truth = victim(known, count=2)
    with pytest.raises(AssertionError, match="other texts"):
        attack_text(known, Seen(seen.rows_NR, seen.lengths[::-1]), Truth(truth.ids), seed=0)


def test_a_quick_budget_is_less_of_everything() -> None:
    quick, whole = Budget.quick(), Budget()
    assert 0 < quick.inverter_steps < whole.inverter_steps
    assert 0 < quick.planted_tokens < whole.planted_tokens
    assert 0 < quick.refined_tokens < whole.refined_tokens
    assert 0 < quick.enumerated_tokens < whole.enumerated_tokens
