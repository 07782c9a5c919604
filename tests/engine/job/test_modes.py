"""Adapters as a job asks for them."""

from pathlib import Path

import pytest
import torch

from splitlearn.engine.job.examples import data_of
from splitlearn.engine.job.merging import save_run
from splitlearn.engine.job.modes import adapt_own, lora_of, side_of
from splitlearn.engine.job.prepare import prepare, specs, unsplit
from splitlearn.engine.plain import train_plain
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_job
from splitlearn.split import Bottleneck, Cut, factor, load_merged, trained_state
from tests.engine.job.test_public import SIDE
from tests.jobs import CAUSAL, Changes, make_job
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


@pytest.mark.parametrize(
    ("changes", "mark"),
    [(LORA, ".lora_"), ({**SIDE, "codec": EXACT}, ".network.blocks.")],
    ids=["lora", "side"],
)
def test_a_job_trains_as_the_unsplit_model_of_its_mode_does(
    tmp_path: Path, changes: Changes, mark: str
) -> None:
    job = load_job(make_job(tmp_path, changes=changes))
    data, model = unsplit(job)
    assert any(mark in name for name in trained_state(model))
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


def test_taps_are_named_in_the_offer_and_sent_as_a_group_of_weights(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=SIDE))
    found = prepare(job)
    detail = found.run.offer.detail
    assert detail.side is not None
    assert (detail.side.taps, detail.side.rank, detail.repeats) == ((1, 2), 6, True)
    assert found.run.exit == 12
    assert {n.split(".")[0] for n in found.run.groups["bottlenecks"]} == {"send"}
    other = load_job(make_job(tmp_path / "other"))
    assert side_of(other, data_of(other)[1], Cut(1, 3)) is None


def test_a_decoder_has_no_network_beside_it_that_sees_what_it_is_to_say(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes={**CAUSAL, **SIDE}, family="gpt2"))
    for begin in (prepare, unsplit):
        with pytest.raises(ManifestError, match=r"cut\.mode is \"side\".*gpt2 model is to say"):
            begin(job)


def test_a_run_with_a_side_network_is_merged_and_scores_what_it_scored(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes={**SIDE, "codec": EXACT}))
    found = prepare(job)
    result = run_in_memory(tmp_path, found.run, steps=found.data.steps, policy="strict.toml")
    state = {**found.run.groups["layers"], **found.run.groups["bottlenecks"]}
    save_run(tmp_path / "export", job=job, prepared=found, state=state)
    loaded = load_merged(tmp_path / "export")
    trained = {n: t for n, t in result.local.state_dict().items() if ".network." in n}
    for name, tensor in trained.items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
