"""The label guard: crude leaks are found by the first full window, honest rows are let be."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from splitlearn.audit import Denied
from splitlearn.errors import RefusedError
from splitlearn.policy import Guard, LabelGuard, Private, load
from splitlearn.policy.guard import _ranks
from splitlearn.roles import Kind
from splitlearn.wire.messages import StepTensor
from tests.door import POLICIES, Door, Rows

Floats = NDArray[np.float32]
Batch = tuple[Floats, Private]
T, D = 4, 24
WARN = Guard(label_correlation=0.9, window=128)


def batches(
    count: int, *, classes: int = 2, examples: int = 16, seed: int = 0
) -> Iterator[tuple[Floats, NDArray[np.integer], Private]]:
    """Rows that know nothing of their labels, packed; labels; what the gate compares with."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        lengths = tuple(int(n) for n in generator.integers(2, T + 1, examples))
        label = generator.integers(0, classes, examples)
        x_ND = generator.standard_normal((sum(lengths), D)).astype(np.float32)
        ids = generator.integers(5, 30_000, (examples, T))
        yield x_ND, label, Private(ids=ids, labels=(label,), lengths=lengths)


def per_row(values: NDArray[np.generic], private: Private) -> NDArray[np.generic]:
    return np.repeat(values, private.lengths)


def first_said(guard: LabelGuard, sent: Iterator[Batch], *, kind: Kind = Kind.ACTIVATION) -> str:
    for x_ND, private in sent:
        said = guard.look(x_ND, kind=kind, private=private, packed=True)
        if said is not None:
            return said
    return ""


def shifted(count: int, *, by: float, classes: int = 2, marked: int = 1) -> Iterator[Batch]:
    """Each value of an example of one class is larger by a little."""
    for x_ND, label, private in batches(count, classes=classes):
        yield x_ND + by * per_row(label == marked, private)[:, None].astype(np.float32), private


def longer(count: int) -> Iterator[Batch]:
    for x_ND, label, private in batches(count):
        yield x_ND * (1 + 3 * per_row(label, private)[:, None]).astype(np.float32), private


def marked_first_row(count: int) -> Iterator[Batch]:
    """Examples as long as one another, whose first row has the greater part of it or the smaller."""
    for x_ND, label, private in batches(count):
        ends = np.cumsum(private.lengths)
        for end, size, told in zip(ends, private.lengths, label, strict=True):
            x_ND[end - size] *= 3 if told else 1
            x_ND[end - size : end] /= np.linalg.norm(x_ND[end - size : end])
        yield x_ND, private


def head_gradients(count: int) -> Iterator[Batch]:
    """Of cross entropy by the pooled first row under a random linear head, before it has learned."""
    generator = np.random.default_rng(9)
    head_CD = generator.standard_normal((2, D))
    head_CD -= head_CD.mean(axis=1, keepdims=True)  # so that no gradient's own mean tells
    for x_ND, label, private in batches(count):
        starts = np.cumsum((0, *private.lengths[:-1]))
        logits_BC = x_ND[starts] @ head_CD.T * 0.1
        p_BC = np.exp(logits_BC) / np.exp(logits_BC).sum(axis=1, keepdims=True)
        g_ND = np.zeros_like(x_ND)
        g_ND[starts] = (p_BC - np.eye(2)[label]) @ head_CD
        yield 1e-4 * g_ND, private


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (shifted(20, by=1.5), "ranks the labels"),
        (longer(20), "norm"),
        (marked_first_row(20), "the first row's norm"),
        (head_gradients(20), "main direction"),
    ],
    ids=["shift", "length", "first row", "gradient of a head"],
)
def test_a_plain_number_that_tells_the_label_is_found(sent: Iterator[Batch], says: str) -> None:
    said = first_said(LabelGuard(WARN), sent)
    assert says in said
    assert "AUC of 0.9" in said or "AUC of 1.00" in said


def test_one_class_against_the_rest_is_found_among_many() -> None:
    assert "ranks the labels" in first_said(
        LabelGuard(Guard(label_correlation=0.9, window=512)),
        shifted(60, by=2.0, classes=7, marked=3),
    )


@pytest.mark.parametrize("classes", [2, 5, 40])
def test_rows_that_know_nothing_are_let_be(classes: int) -> None:
    sent = ((x_ND, private) for x_ND, _, private in batches(300, classes=classes))
    assert first_said(LabelGuard(WARN), sent) == ""


def test_a_little_of_the_label_stays_under_the_limit() -> None:
    assert first_said(LabelGuard(WARN), shifted(100, by=0.1)) == ""
    low = Guard(label_correlation=0.55, window=4_096)
    assert first_said(LabelGuard(low), shifted(300, by=0.1)) != ""


def test_few_examples_are_no_evidence_however_plain() -> None:
    assert first_said(LabelGuard(WARN), shifted(2, by=50.0)) == ""
    assert first_said(LabelGuard(WARN), shifted(8, by=50.0)) != ""


def test_one_class_alone_and_rows_that_are_all_alike_say_nothing() -> None:
    alone = ((x_ND, private) for x_ND, _, private in batches(20, classes=1))
    assert first_said(LabelGuard(WARN), alone) == ""
    alike = (
        (np.ones_like(x_ND), Private(ids=p.ids, labels=(np.sort(label),), lengths=p.lengths))
        for x_ND, label, p in batches(20)
    )
    assert first_said(LabelGuard(WARN), alike) == ""


def test_it_warns_once_for_each_kind_and_watches_the_others_on() -> None:
    guard = LabelGuard(WARN)
    assert first_said(guard, shifted(20, by=3.0)) != ""
    assert first_said(guard, shifted(20, by=3.0)) == ""
    assert "outgoing gradient" in first_said(guard, shifted(20, by=3.0), kind=Kind.GRADIENT)
    assert first_said(LabelGuard(WARN), shifted(20, by=3.0), kind=Kind.OUTPUT) == ""


def test_it_forgets_what_is_older_than_its_window() -> None:
    guard = LabelGuard(WARN)
    assert first_said(guard, shifted(3, by=50.0)) == ""
    honest = ((x_ND, private) for x_ND, _, private in batches(30))
    assert first_said(guard, honest) == ""


def test_deny_stops_the_run_by_its_rule() -> None:
    guard = LabelGuard(msgspec.structs.replace(WARN, action="deny"))
    with pytest.raises(RefusedError, match="can read labels") as refused:
        first_said(guard, shifted(20, by=3.0))
    assert refused.value.rule == "guard.label_correlation"


@pytest.mark.parametrize("packed", [True, False])
def test_labels_of_tokens_are_watched_row_by_row(packed: bool) -> None:
    generator = np.random.default_rng(3)
    for told in (False, True):
        guard, found = LabelGuard(WARN), []
        for _, _, p in batches(40):
            tags_BT = generator.integers(0, 3, p.ids.shape)
            tags_BT[np.arange(T) >= np.asarray(p.lengths)[:, None]] = -100
            tags_BT[:, 0] = -100  # as the first special token is
            tag_N = tags_BT[np.arange(T) < np.asarray(p.lengths)[:, None]] if packed else tags_BT
            x_ND = generator.standard_normal((tag_N.size, D)).astype(np.float32)
            x_ND[tag_N.reshape(-1) == 2] *= 4 if told else 1
            private = Private(ids=p.ids, labels=(tags_BT,), lengths=p.lengths)
            found.append(guard.look(x_ND, kind=Kind.GRADIENT, private=private, packed=packed))
        assert any("tokens" in said for said in found if said) is told


def test_padded_rows_are_taken_by_example() -> None:
    generator, guard, found = np.random.default_rng(4), LabelGuard(WARN), []
    for _, label, private in batches(20):
        x_ND = generator.standard_normal((len(label) * T, D)).astype(np.float32)
        x_ND += 3 * np.repeat(label, T)[:, None].astype(np.float32)
        found.append(guard.look(x_ND, kind=Kind.ACTIVATION, private=private, packed=False))
    assert any(found)


def test_huge_numbers_raise_nothing() -> None:
    guard = LabelGuard(WARN)
    for x_ND, _, private in batches(20):
        x_ND[0] = np.finfo(np.float32).max
        guard.look(x_ND, kind=Kind.ACTIVATION, private=private, packed=True)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30))
def test_equal_figures_share_their_middle_rank(values: list[int]) -> None:
    below = [sum(other < value for other in values) for value in values]
    alike = [values.count(value) for value in values]
    middle = [b + (a + 1) / 2 for b, a in zip(below, alike, strict=True)]
    assert _ranks(np.array([values], np.float32))[0].tolist() == middle


def large_message() -> Rows:
    """One message of 128 examples whose rows tell their label."""
    x_ND, label, private = next(batches(1, examples=128))
    x_ND += 2 * per_row(label, private)[:, None].astype(np.float32)
    meta = StepTensor(0, 0, 4, "train", T, True, private.lengths, 0)
    return Rows(torch.from_numpy(x_ND), meta, private)


@pytest.mark.parametrize("action", ["warn", "deny"])
def test_the_gate_asks_before_it_sends(tmp_path: Path, action: str) -> None:
    policy = msgspec.structs.replace(
        load(POLICIES / "demo.toml"), guard=msgspec.structs.replace(WARN, action=action)
    )
    door, message = Door(tmp_path, policy=policy), large_message()
    if action == "warn":
        door.send(message)
        (said,) = door.gate.warnings
        assert "outgoing activation" in said
        return
    before = len(door.tap)
    with pytest.raises(RefusedError):
        door.send(message)
    assert len(door.tap) == before
    assert isinstance(door.records[-1], Denied)
    assert door.records[-1].rule == "guard.label_correlation"


def test_without_a_guard_in_the_policy_the_gate_asks_nobody(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.send(large_message())
    assert door.gate.warnings == []
