"""A job's texts and labels as batches, and what randomising labels does to them."""

import json
from pathlib import Path

import torch

from splitlearn.engine.job.prepare import Prepared, prepare
from splitlearn.manifest import load_job
from splitlearn.roles import Kind
from splitlearn.wire import frames
from tests.jobs import make_job

Changes = dict[str, dict[str, object]]


def prepared(folder: Path, changes: Changes | None = None) -> Prepared:
    return prepare(load_job(make_job(folder, changes=changes)))


def labels_used(found: Prepared, *, epoch: int) -> dict[tuple[int, ...], int]:
    """By text, the label that each example is trained on."""
    used = {}
    for step in range(3 * epoch, 3 * epoch + 3):
        for batch in found.data.steps(step):
            ids = [tuple(row) for row in batch.inputs["input_ids"].tolist()]
            texts = (row[:length] for row, length in zip(ids, batch.lengths, strict=True))
            used.update(zip(texts, batch.labels["labels"].tolist(), strict=True))
    return used


def test_whoever_names_no_held_out_data_has_none(tmp_path: Path) -> None:
    data = prepared(tmp_path, {"data": {"evaluate": None}}).data
    assert data.held_out is None
    assert data.evaluation == ()


def test_randomised_labels_are_drawn_once_for_a_run_folder(tmp_path: Path) -> None:
    changes: Changes = {"privacy": {"label_epsilon": 0.1}, "schedule": {"epochs": 2}}
    found = prepared(tmp_path, changes)
    first = labels_used(found, epoch=0)
    assert len(first) > 20
    assert labels_used(found, epoch=1) == first
    assert labels_used(prepared(tmp_path, changes), epoch=0) == first
    elsewhere = prepared(tmp_path, {**changes, "run": {"folder": "elsewhere"}})
    assert labels_used(elsewhere, epoch=0) != first
    # The secret is not what the peer is told, and the peer cannot draw the same.
    claim = json.loads((tmp_path / "run" / "run.json").read_text())
    assert claim["labels"] != claim["salt"]
    raw = frames.encode(Kind.OFFER, seq=1, meta=found.run.offer)
    assert claim["labels"].encode() not in raw
    assert bytes.fromhex(claim["labels"]) not in raw


def test_neither_held_out_labels_nor_what_they_are_compared_with_are_randomised(
    tmp_path: Path,
) -> None:
    plain = prepared(tmp_path)
    found = prepared(tmp_path, {"privacy": {"label_epsilon": 0.1}})
    assert found.data.held_out == plain.data.held_out
    for one, two in zip(found.data.evaluation, plain.data.evaluation, strict=True):
        assert torch.equal(one.labels["labels"], two.labels["labels"])
        assert not one.truth
    assert found.data.train.gold == plain.data.train.gold
    assert labels_used(plain, epoch=0) != labels_used(found, epoch=0)
    assert found.run.noise is None
