"""Canaries: mixed in at their rate, kept sealed, and attacked with nothing but what a peer has."""

import json
import stat
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file

from splitlearn.audit import Blobs, Payload, RunOpen, read_records
from splitlearn.engine.job.canaries import (
    CANARIES,
    CanaryExposure,
    CanaryRecord,
    attack_canaries,
    write_canaries,
)
from splitlearn.engine.job.prepare import Prepared, prepare
from splitlearn.errors import AuditError, ManifestError
from splitlearn.leakage import Budget
from splitlearn.manifest import load_job
from splitlearn.roles import Kind
from tests.chains import run_chain
from tests.jobs import Changes, make_job, public_lines
from tests.rig import run_in_memory

CANARY = {"file": "canary.jsonl", "rate": 0.3}


def made(folder: Path, changes: Changes | None = None) -> Prepared:
    job = make_job(folder, examples=48, changes={"canary": CANARY, **(changes or {})})
    return prepare(load_job(job))


def run(folder: Path, changes: Changes | None = None) -> Path:
    """A whole run with canaries; the folder of the trusted party's log."""
    prepared = made(folder / "job", changes)
    log = folder / "clinic" / "audit"
    run_in_memory(folder, prepared.run, steps=prepared.data.steps)
    write_canaries([log], prepared, max_length=16)
    return log


def run_through_a_chain(folder: Path, changes: Changes | None = None) -> list[Path]:
    """The same of a run of two compute parties; the folders of the logs of what each was sent."""
    farm = {"party": "farm", "dial": "127.0.0.1:2", "first": 2}
    prepared = made(folder / "job", {"[chain]": farm, **(changes or {})})
    ended = run_chain(folder, prepared.run, steps=prepared.data.steps)
    logs = [host.clinic.log.folder for host in ended.hosts]
    write_canaries(logs, prepared, max_length=16)
    return logs


def attack(folder: Path, log: Path) -> CanaryExposure:
    return attack_canaries(
        log,
        model=str(folder / "job" / "model"),
        lines=public_lines(120),
        run_key=None,
        seed=0,
        budget=Budget.quick(),
    )


def test_canaries_come_at_their_rate_in_a_micro_batch_of_their_own(tmp_path: Path) -> None:
    data = made(tmp_path).data
    batches = [batch for step in range(data.steps.total) for batch in data.steps(step)]
    canaries = sum(len(batch.lengths) for batch in batches if batch.canary)
    everything = sum(len(batch.lengths) for batch in batches)
    assert 0.1 < canaries / everything < 0.4
    sizes = {len(batch.lengths) for batch in batches if batch.canary}
    assert sizes == {data.steps.canary_size} == {4}
    assert not any(batch.canary for batch in data.evaluation)


def test_without_canaries_no_step_changes(tmp_path: Path) -> None:
    plain = prepare(load_job(make_job(tmp_path / "plain", examples=48))).data.steps
    mixed = made(tmp_path / "mixed").data.steps
    assert plain.total == mixed.total
    for step in range(plain.total):
        ordinary = [b.lengths for b in mixed(step) if not b.canary]
        assert ordinary == [b.lengths for b in plain(step)]


def test_a_rate_at_which_no_canary_would_come_is_told_with_one_that_would(tmp_path: Path) -> None:
    rare = {**CANARY, "rate": 0.02}
    with pytest.raises(ManifestError, match=r"canary\.rate is 0\.02.* it takes 0\.077 or more"):
        made(tmp_path / "rare", {"canary": rare})
    data = made(tmp_path / "enough", {"canary": {**CANARY, "rate": 0.077}}).data
    assert any(data.steps.canaries_of(step) for step in range(data.steps.total))


def test_only_frames_of_canaries_are_kept_and_they_are_sealed(tmp_path: Path) -> None:
    log = run(tmp_path)
    record = msgspec.json.decode((log / CANARIES / "record.json").read_bytes(), type=CanaryRecord)
    sent = [
        r
        for _, r in read_records(log)
        if isinstance(r, Payload) and r.direction == "out" and r.step is not None
    ]
    kept = [r for r in sent if r.blob != "withheld"]
    assert {r.kind for r in kept} == {Kind.ACTIVATION, Kind.GRADIENT}
    assert {r.step for r in kept} == set(record.steps)
    assert {r.micro_batch for r in kept} == {2}  # after the two of the step's own examples
    assert len(kept) == 2 * len(record.steps)
    raw = Blobs.open(log, create=False).read(kept[0].blob)
    assert len(raw) == kept[0].wire_bytes
    assert all(raw not in path.read_bytes() for path in (log / "blobs").iterdir())
    assert stat.S_IMODE((log / CANARIES / "record.json").stat().st_mode) == 0o600


def test_the_attacks_read_canaries_from_what_was_sent(tmp_path: Path) -> None:
    found = attack(tmp_path, run(tmp_path))
    assert found.text is not None
    assert found.text.best.top1 > 0.9
    assert found.activations == 12
    assert found.labels is not None
    assert found.labels.best.auc is not None
    assert found.labels.best.auc > 0.9


def test_behind_a_low_rank_cut_the_published_basis_is_used(tmp_path: Path) -> None:
    lower = {"method": "pca", "rank": 8, "public_text": "public.txt"}
    found = attack(tmp_path, run(tmp_path, {"cut.lower": lower}))
    assert found.text is not None
    assert found.text.best.top1 > max(one.top1 for one in found.text.baselines)


def test_where_no_gradient_leaves_no_label_is_attacked(tmp_path: Path) -> None:
    found = attack(tmp_path, run(tmp_path, {"cut": {"mode": "features"}}))
    assert found.text is not None
    assert (found.gradients, found.labels) == (0, None)


def test_of_a_chain_each_party_is_attacked_in_what_it_was_sent(tmp_path: Path) -> None:
    logs = run_through_a_chain(tmp_path)
    opened = [r for log in logs for _, r in read_records(log) if isinstance(r, RunOpen)]
    assert [r.cut for r in opened] == [(1, 2), (2, 3)]
    for one in (attack(tmp_path, log) for log in logs):
        assert (one.activations, one.gradients) == (12, 24)
        assert one.text is not None
        assert one.text.best.top1 > 0.9
        assert one.labels is not None
        assert one.labels.best.auc is not None
        assert one.labels.best.auc > 0.9


def test_each_log_of_a_chain_has_the_bases_of_its_own_cuts_only(tmp_path: Path) -> None:
    changes: Changes = {
        "cut.lower": {"method": "pca", "rank": 8, "public_text": "public.txt"},
        "codec": {"output": "pca-transform-e0.1", "public_text": "public.txt"},
    }
    first, second = run_through_a_chain(tmp_path, changes)
    kept = [set(load_file(log / CANARIES / "bases.safetensors")) for log in (first, second)]
    assert kept == [
        {"lower.mean", "lower.components"},
        {"output.mean", "output.vectors"},
    ]
    for log in (first, second):
        found = attack(tmp_path, log)
        assert found.text is not None
        assert found.text.best.top1 > max(one.top1 for one in found.text.baselines)


def test_frames_that_were_destroyed_are_passed_over(tmp_path: Path) -> None:
    log = run(tmp_path)
    with pytest.raises(AuditError, match="does not open with this run key"):
        attack_canaries(
            log,
            model=str(tmp_path / "job" / "model"),
            lines=public_lines(120),
            run_key=bytes(32),
            seed=0,
            budget=Budget.quick(),
        )


def test_a_log_without_canaries_says_what_to_do(tmp_path: Path) -> None:
    prepared = prepare(load_job(make_job(tmp_path / "job")))
    run_in_memory(tmp_path, prepared.run, steps=prepared.data.steps)
    log = tmp_path / "clinic" / "audit"
    write_canaries([log], prepared, max_length=16)
    assert not (log / CANARIES).exists()
    with pytest.raises(AuditError, match="a run with canaries leaves it"):
        attack(tmp_path, log)


def test_a_record_that_was_tampered_with_is_no_record(tmp_path: Path) -> None:
    log = run(tmp_path)
    path = log / CANARIES / "record.json"
    record = json.loads(path.read_text())
    first = next(iter(record["steps"]))
    path.write_text(json.dumps({**record, "steps": {first: record["steps"][first]}}))
    with pytest.raises(AuditError, match="belongs to no step with canaries"):
        attack(tmp_path, log)
    path.write_text("{}")
    with pytest.raises(AuditError, match="cannot be read"):
        attack(tmp_path, log)


def test_a_wrong_model_or_too_little_text_is_told(tmp_path: Path) -> None:
    log = run(tmp_path)
    with pytest.raises(ManifestError, match="cannot be loaded"):
        attack_canaries(
            log,
            model=str(tmp_path),
            lines=public_lines(120),
            run_key=None,
            seed=0,
            budget=Budget.quick(),
        )
    with pytest.raises(ManifestError, match="40 at least"):
        attack_canaries(
            log,
            model=str(tmp_path / "job" / "model"),
            lines=["one"],
            run_key=None,
            seed=0,
            budget=Budget.quick(),
        )
