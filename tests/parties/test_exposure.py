"""Measured leakage as tables, as a file and as a refusal."""

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from parties.exposure import Attack, Measured, check_limits, measured, tables, write
from splitlearn.errors import AuditError, RefusedError
from splitlearn.leakage import SUITE_VERSION, LabelRecovery, LabelReport, Recovery, TextReport
from splitlearn.policy import Leakage as Limits


def one(name: str, top1: float, **more: float) -> Attack:
    return Attack(name=name, version=1, seed=0, budget={}, scored=100, top1=top1, **more)  # type: ignore[arg-type]


FOUND = Measured(
    at="canary",
    run="news",
    quick=False,
    suite=1,
    seed=0,
    text=(one("ridge", 0.9, top20=0.95, slots_top1=0.5), one("nearest", 0.4, top20=0.5)),
    text_baselines=(one("most frequent", 0.05, top20=0.2),),
    labels=(one("spectral", 0.99, auc=0.995),),
    labels_baselines=(one("majority", 0.5, auc=0.5),),
)


def test_the_strongest_attack_is_the_headline() -> None:
    assert (FOUND.tokens, FOUND.label_auc) == (0.9, 0.995)
    nothing = Measured(at="canary", run="news", quick=False, suite=1, seed=0)
    assert (nothing.tokens, nothing.label_auc) == (None, None)
    assert tables(nothing) == []


def test_both_kinds_of_attack_take_one_form() -> None:
    on_text = Recovery(
        *("ridge", 2, 7, {"tokens": 50.0}),
        tokens=100,
        top1=0.9,
        top20=0.95,
        unseen=9,
        unseen_top1=0.1,
        slots=4,
        slots_top1=0.5,
    )
    on_labels = LabelRecovery(
        *("spectral", 3, 7, {}), examples=64, auc=0.995, accuracy=0.99, top20=1.0
    )
    found = measured(
        quick=False,
        at="canary",
        run="news",
        seed=7,
        text=TextReport(SUITE_VERSION, on_text, attacks=(on_text,), baselines=()),
        labels=LabelReport(on_labels, attacks=(on_labels,), baselines=(on_labels,)),
    )
    assert found.text == (
        Attack(
            name="ridge",
            version=2,
            seed=7,
            budget={"tokens": 50.0},
            scored=100,
            top1=0.9,
            top20=0.95,
            unseen_top1=0.1,
            slots_top1=0.5,
        ),
    )
    assert found.labels == (
        Attack(
            name="spectral",
            version=3,
            seed=7,
            budget={},
            scored=64,
            top1=0.99,
            top20=1.0,
            auc=0.995,
        ),
    )
    assert (found.text_baselines, found.labels_baselines) == ((), found.labels)


def test_every_table_names_each_attack_beside_the_baselines_and_says_lower_bound() -> None:
    console = Console(record=True, width=100)
    for table in tables(FOUND):
        console.print(table)
    said = console.export_text()
    for word in ("ridge", "nearest", "most frequent", "spectral", "majority", "90.0%", "0.995"):
        assert word in said
    assert said.count("a lower bound") == 2


def test_a_file_reads_back(tmp_path: Path) -> None:
    digest = write(tmp_path / "new" / "leakage.json", FOUND)
    data = (tmp_path / "new" / "leakage.json").read_bytes()
    assert msgspec.json.decode(data, type=Measured) == FOUND
    assert len(digest) == 64
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="cannot be written"):
        write(tmp_path / "file" / "leakage.json", FOUND)


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (Limits(max_token_recovery=0.5), "leakage.max_token_recovery"),
        (Limits(max_label_auc=0.7), "leakage.max_label_auc"),
        (Limits(max_token_recovery=0.9, max_label_auc=0.995), None),
        (Limits(), None),
        (None, None),
    ],
    ids=["tokens", "labels", "just within", "no limit", "no table"],
)
def test_more_than_the_policy_allows_is_refused(limits: Limits | None, rule: str | None) -> None:
    if rule is None:
        check_limits(FOUND, limits)
        return
    with pytest.raises(RefusedError) as refused:
        check_limits(FOUND, limits)
    assert refused.value.rule == rule
