"""A run with adapters, exported: peft's folder and the merged model against the run's own model."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor

import splitlearn
from splitlearn.engine.job.examples import data_of
from splitlearn.engine.job.merging import ADAPTERS, save_run
from splitlearn.engine.job.prepare import prepare, specs, unsplit
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.manifest import load_job
from tests.engine.job.test_modes import LORA
from tests.jobs import make_job
from tests.rig import run_in_memory


def logits(model: torch.nn.Module, data: object) -> Tensor:
    batches = data.evaluation  # type: ignore[attr-defined]
    found = evaluate_plain(model, batches=batches, observe=lambda _: None)
    return torch.cat([output["logits"] for output in found])


def test_an_export_has_the_adapters_in_pefts_format_and_the_merged_model(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=LORA))
    data, whole = unsplit(job)
    optimiser, schedule = specs(job, steps=data.steps.total)
    arguments = {"optimiser": optimiser, "schedule": schedule, "seed": job.run.seed}
    train_plain(whole, steps=data.steps, **arguments, observe=lambda _: None)
    expected = logits(whole, data)
    found = prepare(job)
    result = run_in_memory(tmp_path, found.run, steps=found.data.steps)
    assert all(".lora_" in name for name in result.trunk)
    state = {**found.run.groups["layers"], **result.trunk}
    folder = tmp_path / "export"
    save_run(folder, job=job, prepared=found, state=state)
    assert json.loads((folder / ADAPTERS / "adapter_config.json").read_text())["r"] == 2
    _, base = data_of(job)
    alone = PeftModel.from_pretrained(base, folder / ADAPTERS)
    assert torch.equal(logits(alone, data), expected)
    merged = splitlearn.load_merged(folder)
    torch.testing.assert_close(logits(merged, data), expected, rtol=0, atol=1e-5)
    assert not any("lora" in name for name in merged.state_dict())


def test_over_a_narrow_cut_there_is_a_merged_model_only(tmp_path: Path) -> None:
    changes = {**LORA, "cut.upper": {"method": "sft", "rank": 4}}
    job = load_job(make_job(tmp_path, changes=changes))
    found = prepare(job)
    result = run_in_memory(tmp_path, found.run, steps=found.data.steps)
    assert any(name.startswith("send.") for name in result.trunk)
    state = {**found.run.groups["layers"], **found.run.groups["bottlenecks"], **result.trunk}
    save_run(tmp_path / "export", job=job, prepared=found, state=state)
    assert not (tmp_path / "export" / ADAPTERS).exists()
    scored = logits(splitlearn.load_merged(tmp_path / "export"), found.data)
    assert scored.isfinite().all()


@pytest.mark.parametrize("mode", ["features", "full"])
def test_other_modes_leave_a_merged_model_alone(tmp_path: Path, mode: str) -> None:
    job = load_job(make_job(tmp_path, changes={"cut": {"mode": mode}}))
    found = prepare(job)
    save_run(tmp_path / "export", job=job, prepared=found, state=found.run.groups["layers"])
    _, base = data_of(job)
    assert (
        splitlearn.load_merged(tmp_path / "export").state_dict().keys() == base.state_dict().keys()
    )
