"""Adapters as a job asks for them."""

from pathlib import Path

import pytest

from splitlearn.engine.modes import adapt_own, lora_of
from splitlearn.engine.plain import train_plain
from splitlearn.engine.prepare import data_of, prepare, specs, unsplit
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_job
from splitlearn.split import Bottleneck, Cut, factor, trained_state
from tests.jobs import Changes, make_job
from tests.rig import run_in_memory

EXACT = dict.fromkeys(("activation", "output", "gradient", "input_gradient"), "identity")
LORA: Changes = {"cut": {"mode": "lora"}, "cut.lora": {"rank": 2, "where": "all"}, "codec": EXACT}


def test_an_offer_names_the_adapters_and_nothing_of_them_is_sent_beforehand(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=LORA))
    found = prepare(job)
    spec = found.run.offer.detail.lora
    assert spec is not None
    assert (spec.rank, spec.alpha, spec.dropout, spec.seed) == (2, 16.0, 0.0, job.run.seed)
    assert len(spec.targets) == 4
    # Two layers at the peer, four targets in each, A and B.
    assert len(found.run.groups["adapters"]) == 2 * 4 * 2
    assert not any("lora" in name for name in found.run.groups["layers"])


def test_a_job_with_adapters_trains_as_the_unsplit_model_does(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=LORA))
    data, model = unsplit(job)
    assert any(".lora_" in name for name in trained_state(model))
    optimiser, schedule = specs(job, steps=data.steps.total)
    expected = train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=job.run.seed,
        observe=lambda _: None,
    )
    found = prepare(job)
    assert run_in_memory(tmp_path, found.run, steps=found.data.steps).losses == expected


def test_other_modes_have_none_and_a_peer_without_a_whole_layer_gets_none(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path / "full"))
    _, model = data_of(job)
    assert lora_of(job, model, Cut(1, 3)) is None
    job = load_job(make_job(tmp_path / "lora", changes=LORA))
    cut = Cut(2, 3, upper=Bottleneck("sft", 4))
    factor(model, cut=cut, bases={})
    with pytest.raises(ManifestError, match=r"cut\.lora finds no whole layer at the peer"):
        lora_of(job, model, cut)


def test_our_own_layers_get_theirs(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=LORA))
    _, model = data_of(job)
    spec = lora_of(job, model, Cut(1, 3))
    assert spec is not None
    adapt_own(job, model, Cut(1, 3), spec)
    layers = {n.split(".")[3] for n, _ in model.named_parameters() if ".lora_" in n}
    assert layers == {"1", "2", "3"}  # the bottom does not train
