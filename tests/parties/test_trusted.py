"""The trusted party's commands as they are typed, with a compute party at work over the real channel."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

import splitlearn
from parties import run_metrics, trusted
from parties.auditor import judge_of
from splitlearn import audit
from splitlearn.engine.job.examples import data_of
from splitlearn.engine.job.prepare import specs, unsplit
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.errors import ManifestError, RefusedError
from splitlearn.manifest import load_job
from splitlearn.tasks import Scorer
from splitlearn.translation import bleu
from splitlearn.translation.bleu import Bleu, bleu_of
from tests.jobs import CAUSAL, PAIRS, Changes, gpuhost, make_clinic
from tests.tiny import WRITERS

EXACT: Changes = {
    "codec": dict.fromkeys(("activation", "output", "gradient", "input_gradient"), "identity"),
    "cut.upper": {"method": "sft", "rank": 4},
}


def metrics_of(job: Path) -> run_metrics.RunMetrics:
    raw = (job.parent / "run" / run_metrics.METRICS).read_bytes()
    return msgspec.json.decode(raw, type=run_metrics.RunMetrics)


def scores_of(model_folder: Path, job: Path) -> dict[str, float]:
    """What a merged model scores on the job's held-out data, alone."""
    data, _ = data_of(load_job(job))
    assert data.held_out is not None
    model, scorer = splitlearn.load_merged(model_folder), Scorer(data.held_out)
    with torch.no_grad():
        for batch in data.evaluation:
            scorer.add({"logits": model(**batch.inputs).logits})
    return scorer.result()


def test_train_evaluate_and_export_give_one_and_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_clinic(tmp_path, EXACT)
    with gpuhost(tmp_path, job, runs=3):
        trusted.train(job, threads=1)
        metrics = metrics_of(job)
        capsys.readouterr()
        trusted.evaluate(job, threads=1)
        evaluated = json.loads(capsys.readouterr().out)
        trusted.export(job, to=tmp_path / "model", threads=1)
    assert len(metrics.losses) == len(metrics.step_s) == 3
    assert metrics.sent.keys() == {"offer", "weights", "resume", "activation", "gradient"} | {
        "checkpoint",
        "settle",
        "countersigned",
        "finish",
    }
    assert "weights" not in metrics.received  # they come home with the export
    assert metrics.channel_sent > sum(metrics.sent.values())
    assert Checkpoints(job.parent / "run" / "checkpoints").held() == (2, 3)
    assert evaluated == metrics.scores

    assert scores_of(tmp_path / "model", job) == metrics.scores
    trusted.export(job, to=tmp_path / "again", threads=1)  # from the run folder, with nobody there
    assert scores_of(tmp_path / "again", job) == metrics.scores

    for log in (job.parent / "run" / "audit", tmp_path / "gpuhost" / "clinic-films" / "audit"):
        report = audit.verify(log, judge_of=judge_of)
        assert report.ok, report.findings


def gone_on_with(model_folder: Path, prompt: str) -> str:
    """What transformers alone adds to a text with the exported model."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    model = splitlearn.load_merged(model_folder)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6)
    return str(tokenizer.decode(found[0], skip_special_tokens=True))


def said_alone(model_folder: Path, job: Path, *, beams: int) -> tuple[list[str], list[str]]:
    """What transformers alone says by the exported model, a text at a time; and what was to be said."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(model_folder),
        splitlearn.load_merged(model_folder),
    )
    rows = [json.loads(line) for line in (job.parent / "evaluate.jsonl").read_text().splitlines()]
    said = [
        model.generate(
            **tokenizer(row["text"], return_tensors="pt"), max_new_tokens=16, num_beams=beams
        )
        for row in rows
    ]
    written = [str(tokenizer.decode(found[0], skip_special_tokens=True)) for found in said]
    return written, [row["text"] for row in rows]


@pytest.mark.parametrize(
    ("family", "join", "cut"),
    [
        ("gpt2", False, {"top": 3}),
        ("llama", True, {"top": 3}),
        ("bart", False, {"top": 3}),
        ("t5", False, {"top": 3}),
        ("bart", False, {"top": 2, "stack": "decoder"}),
    ],
    ids=["gpt2", "llama", "bart", "t5", "bart in its decoder"],
)
def test_a_decoder_is_trained_split_as_unsplit_and_what_is_exported_has_its_perplexity(
    tmp_path: Path,
    family: str,
    join: bool,
    cut: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scored_texts: list[list[str]] = []  # a model of three steps may score 0: they tell more

    def scoring(written: list[str], **more: Any) -> Bleu:
        scored_texts.append(written)
        return bleu_of(written, **more)

    monkeypatch.setattr(bleu, "bleu_of", scoring)
    task = PAIRS if family in WRITERS else CAUSAL
    changes: Changes = {
        **task,
        "cut": {"train_bottom": True, **cut},
        "codec": EXACT["codec"],
        "data": {**task["data"], "join": join, **({"target": "text"} if family in WRITERS else {})},
        "policy": {"file": "research.toml"},
    }
    job = make_clinic(tmp_path, changes, family=family)
    remote = "stack" in cut
    with gpuhost(tmp_path, job, runs=5 if remote else 4 if family in WRITERS else 3):
        trusted.train(job, threads=1)
        trusted.export(job, to=tmp_path / "model", threads=1)
        capsys.readouterr()
        if remote:
            for ask in (
                partial(trusted.generate, prompt="x"),
                partial(trusted.evaluate, bleu=True),
            ):
                with pytest.raises(
                    ManifestError, match=r"cut\.stack is decoder, so .* takes 1 there"
                ):
                    ask(job, beams=2, threads=1)
        trusted.generate(job, prompt="the old film", tokens=6, threads=1)
        told = capsys.readouterr().out.strip()
        assert told == gone_on_with(tmp_path / "model", "the old film")
        assert told
        if family in WRITERS:
            beams = 1 if remote else 2
            trusted.evaluate(job, bleu=True, beams=beams, threads=1)
            scored = json.loads(capsys.readouterr().out)
            said, wanted = said_alone(tmp_path / "model", job, beams=beams)
            assert scored_texts == [said]
            assert any(said)
            assert scored.pop("bleu") == bleu_of(said, references=wanted, cased=True).score
            assert scored == metrics_of(job).scores
    report = audit.verify(job.parent / "run" / "audit", judge_of=judge_of)
    assert report.ok, report.findings
    metrics, manifest = metrics_of(job), load_job(job)
    data, model = unsplit(manifest)
    optimiser, schedule = specs(manifest, steps=data.steps.total)
    assert metrics.losses == train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=0,
        observe=lambda _: None,
    )
    assert metrics.scores.keys() == {"perplexity", "token_accuracy"}
    assert 1 < metrics.scores["perplexity"] < 60  # of 24 words
    assert data.held_out is not None
    for whole in (model, splitlearn.load_merged(tmp_path / "model")):
        scorer = Scorer(data.held_out)
        whole.config.use_cache = False
        for outputs in evaluate_plain(whole, batches=data.evaluation, observe=lambda _: None):
            scorer.add(outputs)
        assert scorer.result() == metrics.scores


def test_what_no_model_can_be_asked_for_is_said_before_anybody_is_dialled(tmp_path: Path) -> None:
    job = make_clinic(tmp_path)
    with pytest.raises(
        ManifestError, match=r"model\.task is sequence-classification; only a decoder"
    ):
        trusted.generate(job, prompt="the old film", threads=1)
    (job.parent / "run" / "checkpoints" / "2").mkdir(parents=True)
    with pytest.raises(ManifestError, match=r"--bleu is for sequence-to-sequence"):
        trusted.evaluate(job, bleu=True, threads=1)
    job = make_clinic(tmp_path / "gpt2", CAUSAL, family="gpt2")
    with pytest.raises(ManifestError, match="--beams is for sequence-to-sequence"):
        trusted.generate(job, prompt="the old film", beams=2, threads=1)


def test_features_without_held_out_data_trains_and_exports_a_plain_folder(tmp_path: Path) -> None:
    changes: Changes = {
        "cut": {"mode": "features"},
        "data": {"evaluate": None},
        "policy": {"file": "standard.toml"},
    }
    job = make_clinic(tmp_path, changes)
    with gpuhost(tmp_path, job):
        trusted.train(job, threads=1)
    assert metrics_of(job).scores == {}
    assert "gradient" not in metrics_of(job).sent
    assert "weights" not in metrics_of(job).received
    trusted.export(job, to=tmp_path / "model", threads=1)
    assert (tmp_path / "model" / "model.safetensors").exists()
    with pytest.raises(ManifestError, match=r"data\.evaluate"):
        trusted.evaluate(job, threads=1)


def test_adapters_come_home_alone_from_a_run_that_ended_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: Changes = {
        "cut": {"mode": "lora"},
        "optimiser": {"learning_rate": 1e-9},  # so that no score is better than the first
        "schedule": {"epochs": 3, "evaluate_every": 1, "patience": 2},
    }
    job = make_clinic(tmp_path, changes)
    with gpuhost(tmp_path, job, runs=2):
        trusted.train(job, threads=1)
        trusted.export(job, to=tmp_path / "model", threads=1)
    assert len(metrics_of(job).losses) == 3
    assert "step 3: score " in capsys.readouterr().err
    assert {p.name for p in (tmp_path / "model" / "adapters").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    home = job.parent / "run" / "trunk-1.safetensors"  # of equal scores the first is kept
    assert home.stat().st_size < 30_000
    assert scores_of(tmp_path / "model", job) == metrics_of(job).scores


def test_what_is_evaluated_and_exported_is_the_state_with_the_best_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: Changes = {
        "codec": EXACT["codec"],
        "optimiser": {"learning_rate": 0.01},
        "schedule": {"epochs": 4, "name": "constant", "evaluate_every": 2},
    }
    job = make_clinic(tmp_path / "one", {**changes, "checkpoint": {"best": True}})
    with gpuhost(tmp_path / "one", job, runs=3):
        trusted.train(job, threads=1)
        told = capsys.readouterr().err
        trusted.evaluate(job, threads=1)
        evaluated = json.loads(capsys.readouterr().out)
        trusted.export(job, to=tmp_path / "best", threads=1)
    looked = {int(n): float(value) for n, value in re.findall(r"step (\d+): score (\S+)", told)}
    best = max(looked, key=lambda step: looked[step])
    assert 0 < best < max(looked) == len(metrics_of(job).losses) == 12
    assert f"kept as the best: the state after step {best}, with" in told
    assert evaluated == metrics_of(job).scores == scores_of(tmp_path / "best", job)

    # A run that ends there exports the very same weights.
    short = {"epochs": None, "steps": best, "evaluate_every": None}
    other = make_clinic(tmp_path / "two", {**changes, "schedule": changes["schedule"] | short})
    with gpuhost(tmp_path / "two", other, runs=2):
        trusted.train(other, threads=1)
        trusted.export(other, to=tmp_path / "short", threads=1)
    one, two = (load_file(tmp_path / n / "model.safetensors") for n in ("best", "short"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_decoder_with_adapters_goes_on_as_what_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: Changes = {
        **CAUSAL,
        "cut": {"mode": "lora"},
        "cut.lora": {"targets": "all"},
        "optimiser": {"learning_rate": 0.01},
        "policy": {"file": "research.toml"},
    }
    job = make_clinic(tmp_path, changes, family="gpt2")
    with gpuhost(tmp_path, job, runs=3):
        trusted.train(job, threads=1)
        trusted.export(job, to=tmp_path / "model", threads=1)
        capsys.readouterr()
        trusted.generate(job, prompt="the old film", tokens=6, threads=1)
    told = capsys.readouterr().out.strip()
    assert told == gone_on_with(tmp_path / "model", "the old film")
    assert told != gone_on_with(job.parent / "model", "the old film")
    assert (tmp_path / "model" / "adapters").is_dir()


def test_in_mode_side_the_second_epoch_sends_nothing(tmp_path: Path) -> None:
    side = {"rank": 8, "width": 32, "public_text": "public.txt"}
    changes: Changes = {
        "cut": {"mode": "side"},
        "cut.side": side,
        "schedule": {"epochs": 3},
        "policy": {"file": "standard.toml"},
    }
    job = make_clinic(tmp_path, changes)
    with gpuhost(tmp_path, job, runs=2):
        trusted.train(job, threads=1)
        assert len(metrics_of(job).losses) == 9
        examples = data_of(load_job(job))[0].train.examples
        assert metrics_of(job).rows["train"] == sum(len(e.input_ids) for e in examples)
        trusted.evaluate(job, threads=1)
    trusted.export(job, to=tmp_path / "model", threads=1)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    scored = scores_of(tmp_path / "model", job)
    assert scored.keys() == metrics_of(job).scores.keys()


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    job = make_clinic(tmp_path)
    with gpuhost(tmp_path, job, runs=2):
        trusted.train(job, threads=1)
        first = metrics_of(job)
        trusted.train(job, threads=1)
        again = metrics_of(job)
    assert again.losses == first.losses
    assert again.scores == first.scores
    assert again.step_s == []
    assert "weights" not in again.sent


def test_a_party_in_bf16_says_so_in_its_metrics_and_a_device_that_is_not_there_ends_it_first(
    tmp_path: Path,
) -> None:
    nowhere = make_clinic(tmp_path, {"run": {"device": "cuda:99"}})
    for command in (trusted.train, trusted.export):
        with pytest.raises(ManifestError, match=r'job.toml: run.device is "cuda:99", and torch'):
            command(nowhere, threads=1)
    job = make_clinic(tmp_path, {"run": {"precision": "bf16"}})
    with gpuhost(tmp_path, job):
        trusted.train(job, threads=1)
    found = metrics_of(job)
    assert (found.device, found.precision) == ("cpu", "bf16")
    assert found.scores.keys() == {"accuracy", "macro_f1"}


def test_what_needs_a_finished_run_says_so(tmp_path: Path) -> None:
    job = make_clinic(tmp_path)
    with pytest.raises(ManifestError, match="holds no finished run of 3 steps"):
        trusted.export(job, to=tmp_path / "model", threads=1)
    with pytest.raises(ManifestError, match="holds no checkpoint"):
        trusted.evaluate(job, threads=1)
    assert not (tmp_path / "model").exists()


def test_a_job_that_the_policy_cannot_allow_is_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    job = make_clinic(tmp_path, {"policy": {"file": "strict.toml"}})
    with pytest.raises(RefusedError, match="gradient"):
        trusted.train(job, threads=1)
    assert not (job.parent / "run" / "audit").exists()


def test_a_gradient_that_tells_the_labels_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: Changes = {
        "schedule": {"epochs": 6},
        "cut.upper": {"method": "sft", "rank": 4},
        "policy": {"file": "standard.toml"},
    }
    job = make_clinic(tmp_path, changes)
    with gpuhost(tmp_path, job):
        trusted.train(job, threads=1)
    said = capsys.readouterr().err
    assert said.count("warning: ") == said.count("of an outgoing gradient ranks the labels") == 1


@pytest.mark.parametrize("command", ["train", "evaluate", "generate", "export"])
def test_each_command_is_taught_by_example(command: str) -> None:
    done = CliRunner().invoke(trusted.app, [command, "--help"])
    assert done.exit_code == 0
    assert f"splitlearn trusted {command} job.toml" in done.output


def test_a_direct_chain_goes_on_with_no_text(tmp_path: Path) -> None:
    table = {"party": "farm", "dial": "127.0.0.1:2", "first": 2, "direct": True}
    job = make_clinic(tmp_path, {**CAUSAL, "[chain]": table}, family="gpt2")
    with pytest.raises(
        ManifestError, match=r"chain\.direct is true, and texts are gone on with by way"
    ):
        trusted.generate(job, prompt="the old film", threads=1)
