"""What is measured of a model: everything that a plan needs, and nothing of the model is changed.

How right the figures are is judged by tests/bench/links.py.
"""

from pathlib import Path

import pytest
import torch

from splitlearn import policy
from splitlearn.codecs import NAMES
from splitlearn.engine.job.measure import measure_job, measure_speeds
from splitlearn.engine.job.prepare import unsplit
from splitlearn.manifest import links, load_job, needs_basis
from splitlearn.pipeline.speeds import Speeds
from tests.jobs import make_clinic
from tests.rig import ADAMW, POLICIES, batch_of
from tests.tiny import tiny_batch, tiny_model


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra"])
def test_every_family_is_measured_layer_by_layer_and_left_as_it_was(family: str) -> None:
    model = tiny_model(family)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = [batch_of(tiny_batch(model, lengths=(9,) * size, width=9)) for size in (2, 8)]
    speeds = measure_speeds(
        model,
        made,
        layer=1,
        optimiser=ADAMW,
        policy=policy.load(POLICIES / "demo.toml"),
        codecs=NAMES,
        tokens=9.0,
        padded=9.0,
    )
    assert (speeds.layers, speeds.width) == (4, 32)
    party = speeds.trusted
    for line in (party.layer, party.layer_backward, party.ends, party.ends_backward, party.message):
        assert line[0] + line[1] > 0
    assert party.layer_update_s > 0
    assert set(speeds.codecs) == {
        name for name in NAMES if not needs_basis(name) and not links(name)
    }
    assert speeds.codecs["identity"][:2] == (1.0, 0.0)
    assert 3 < speeds.codecs["int8"][0] < 4
    assert 0 < speeds.codecs["int8"][1] < 0.02
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Speeds:
    """Of a small job, under a policy that is a compute party's and lets no activation out."""
    job = load_job(make_clinic(tmp_path_factory.mktemp("measured")))
    data, model = unsplit(job)
    rules = policy.load(POLICIES / "compute.toml")
    return measure_job(job, data, model, policy=rules, codecs=["fp16"])


def test_a_jobs_own_examples_say_how_long_texts_are(measured: Speeds) -> None:
    assert 5 < measured.tokens < measured.padded < 16
    assert set(measured.codecs) == {"fp16", "int8+zstd"}


def test_a_jobs_own_codecs_are_measured_and_those_in_a_basis_where_it_has_public_text(
    tmp_path: Path,
) -> None:
    codec = {
        "activation": "pca-transform-e0.3",
        "output": "int4",
        "gradient": "transform-e0.25",
        "public_text": "public.txt",
    }
    job = load_job(make_clinic(tmp_path, {"codec": codec}))
    data, model = unsplit(job)
    rules = policy.load(job.policy.file)
    speeds = measure_job(job, data, model, policy=rules, codecs=["fp16", "pca-0.3"])
    assert set(speeds.codecs) == {
        *("pca-transform-e0.3", "int4", "transform-e0.25", job.codec.input_gradient),
        *("fp16", "pca-0.3"),
    }
    assert speeds.codecs["pca-transform-e0.3"][1] == pytest.approx(0.3, rel=0.1)
    assert speeds.trusted.ends_update_s > 0
    assert speeds.trusted.carry[0] > 0


def test_a_policy_that_lets_such_rows_not_out_leaves_the_gate_unmeasured(measured: Speeds) -> None:
    assert measured.trusted.message == (0.0, 0.0)


def test_the_run_folder_is_not_claimed(tmp_path: Path) -> None:
    job = load_job(make_clinic(tmp_path))
    data, model = unsplit(job)
    measure_job(job, data, model, policy=policy.load(job.policy.file), codecs=[])
    assert not (job.run.folder / "run.json").exists()
