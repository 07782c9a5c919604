"""What a run says about its labels, by the commands as they are typed and by the log alone."""

import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from parties import console, run_metrics, trusted
from parties.protection import guarantees, outlook, sentence
from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Payload, decode
from splitlearn.manifest import load_job
from splitlearn.policy.accounting import gaussian, gaussian_epsilon, randomised_response
from tests.jobs import PAIRS, Changes, gpuhost, make_clinic, make_job

NOISE: Changes = {
    "privacy": {"gradient_clip": 0.7, "gradient_noise": 6.0, "delta": 1e-6},
    "schedule": {"epochs": 2},
}


def test_a_run_with_noise_says_what_it_was_worth_and_its_log_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(record=True, width=300, force_terminal=False)
    monkeypatch.setattr(console, "console", screen)
    job = make_clinic(tmp_path, NOISE)
    with gpuhost(tmp_path, job):
        trusted.train(job, threads=1)
    told = screen.export_text()
    assert "as far as the noise on them allows" in told
    epsilon = gaussian_epsilon(1e-6, sigma=6.0, releases=2, sensitivity=2.0)
    assert f"labels: epsilon {epsilon:.4g} at delta 1e-06 for the labels of one example" in told
    raw = (job.parent / "run" / run_metrics.METRICS).read_bytes()
    (found,) = msgspec.json.decode(raw, type=run_metrics.RunMetrics).epsilon
    assert (found["epsilon"], found["delta"], found["releases"]) == (epsilon, 1e-6, 2)
    assert (found["unit"], found["relation"]) == ("example", "replace-labels")
    records = [decode(line) for line, _ in read_lines(job.parent / "run" / "audit")]
    noisy = [r.dp for r in records if isinstance(r, Payload) and r.dp is not None]
    # Three steps of two micro-batches in each epoch.
    assert [(dp.clip, dp.noise, dp.epoch) for dp in noisy] == [
        *[(0.7, 6.0, 0)] * 6,
        *[(0.7, 6.0, 1)] * 6,
    ]
    (again,) = guarantees(load_job(job), log=job.parent / "run" / "audit")
    assert msgspec.to_builtins(again) == found


def test_a_run_without_protection_has_no_epsilon(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path))
    assert guarantees(job, log=tmp_path) == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "mode full: labels can be read from the gradients.*mode features sends none"),
        ({"privacy": {"label_epsilon": 2.0}}, "randomised ones, of epsilon 2 each; no text"),
        (NOISE, "as far as the noise on them allows; no text is protected"),
    ],
    ids=["none", "randomised", "noise"],
)
def test_before_a_run_it_is_said_once_to_whom_labels_show(
    tmp_path: Path, changes: Changes, told: str
) -> None:
    found = outlook(load_job(make_job(tmp_path, changes=changes)))
    assert found is not None
    assert re.search(told, found)
    assert "gpuhost" in found


def test_where_no_gradient_leaves_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert outlook(load_job(make_job(tmp_path, changes={"cut": {"mode": "features"}}))) is None


def test_randomised_labels_have_their_epsilon_whatever_was_sent(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes={"privacy": {"label_epsilon": 2.0}}))
    (found,) = guarantees(job, log=tmp_path)
    assert found == randomised_response(2.0)
    assert "labels: epsilon 2 each, by randomised response drawn once" in sentence(found)


def test_a_sentence_counts_releases() -> None:
    assert sentence(gaussian(noise=2.0, delta=1e-5, releases=1)).endswith("over 1 release")
    assert sentence(gaussian(noise=2.0, delta=1e-5, releases=4)).endswith("over 4 releases")


def test_all_whom_gradients_go_to_are_named(tmp_path: Path) -> None:
    chain = {"party": "farm", "dial": "127.0.0.1:2", "first": 2}
    told = outlook(load_job(make_job(tmp_path, changes={"[chain]": chain})))
    assert told is not None
    assert "that this run sends to gpuhost and farm; mode features sends none" in told


@pytest.mark.parametrize("mode", ["features", "full"])
def test_where_a_decoders_layers_are_cut_targets_show_in_every_mode(
    tmp_path: Path, mode: str
) -> None:
    changes: Changes = {**PAIRS, "cut": {"stack": "decoder", "top": 2, "mode": mode}}
    told = outlook(load_job(make_job(tmp_path, changes=changes, family="bart")))
    assert told is not None
    assert "sends to gpuhost is computed from the targets, too, in every mode" in told
