import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel, RobertaTokenizerFast

from splitlearn.errors import ManifestError
from splitlearn.manifest import Job, load_job
from splitlearn.pretrain.models import build_discriminator, export_model
from splitlearn.split.anatomy import layers_of
from splitlearn.tasks.models import Loaded, load_model, positions_in
from tests.babble import lines, vocabulary
from tests.babble import model as model_settings
from tests.jobs import PAIRS
from tests.jobs import make_job as make_files

MakeJob = Callable[..., Job]
TASKS = ["sequence-classification", "token-classification", "question-answering"]


def load(
    make_job: MakeJob, folder: Path, *, found: tuple[str, ...] = ("a", "b"), **model: object
) -> Loaded:
    return load_model(make_job(model={"path": str(folder), **model}), found=found)


@pytest.fixture
def folder(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny BERT that a test may spoil."""
    return Path(shutil.copytree(bert_folder, tmp_path / "copy"))


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", ["bert_folder", "roberta_folder"])
def test_every_task_gets_its_head_and_computes_its_own_loss(
    make_job: MakeJob, request: pytest.FixtureRequest, family: str, task: str
) -> None:
    loaded = load(make_job, request.getfixturevalue(family), found=("a", "b", "c"), task=task)
    assert not loaded.model.training
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer.is_fast
    assert loaded.labels == (() if task == "question-answering" else ("a", "b", "c"))
    inputs = loaded.tokenizer("the film , фильм", return_tensors="pt")
    labels = {
        "sequence-classification": {"labels": torch.tensor([2])},
        "token-classification": {"labels": torch.full_like(inputs["input_ids"], 2)},
        "question-answering": {
            "start_positions": torch.tensor([1]),
            "end_positions": torch.tensor([2]),
        },
    }[task]
    assert loaded.model(**inputs, **labels).loss.isfinite()


def test_the_files_weights_are_taken_and_the_new_head_follows_the_seed_alone(
    make_job: MakeJob, bert_folder: Path
) -> None:
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    one = load(make_job, bert_folder).model
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(321)
    two = load(make_job, bert_folder).model
    assert torch.equal(one.classifier.weight, two.classifier.weight)
    job = make_job(model={"path": str(bert_folder)}, run={"seed": 1})
    other = load_model(job, found=("a", "b")).model
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    stored = load_file(bert_folder / "model.safetensors")
    state = one.bert.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in stored.items())


def test_attention_is_what_the_job_says(make_job: MakeJob, bert_folder: Path) -> None:
    for attention in ("sdpa", "eager"):
        model = load(make_job, bert_folder, attention=attention).model
        assert model.config._attn_implementation == attention


def test_the_jobs_labels_come_before_the_models_and_those_before_the_datas(
    make_job: MakeJob, folder: Path
) -> None:
    assert load(make_job, folder, found=("x", "y")).labels == ("x", "y")
    change(folder, id2label={"0": "pos", "1": "neg"}, label2id={"pos": 0, "neg": 1})
    assert load(make_job, folder, found=("neg",)).labels == ("pos", "neg")
    assert load(make_job, folder, found=("neg", "neutral")).labels == ("neg", "neutral")
    assert load(make_job, folder, labels=["u", "v"]).labels == ("u", "v")
    model = load(make_job, folder, labels=["u", "v"]).model
    assert model.config.id2label == {0: "u", 1: "v"}
    assert model.config.problem_type == "single_label_classification"


@pytest.mark.parametrize("found", [(), ("a",)])
def test_fewer_than_two_labels_are_no_classification(
    make_job: MakeJob, bert_folder: Path, found: tuple[str, ...]
) -> None:
    with pytest.raises(ManifestError, match=rf"model\.labels is missing .* has {len(found)};"):
        load(make_job, bert_folder, found=found)


def test_a_model_fine_tuned_for_other_labels_is_refused(
    make_job: MakeJob, folder: Path, bert_folder: Path
) -> None:
    loaded = load(make_job, bert_folder, found=("a", "b", "c"))
    loaded.model.save_pretrained(folder)
    assert load(make_job, folder, found=("a", "b")).labels == ("a", "b", "c")
    with pytest.raises(ManifestError, match="has 2 labels, but the model was fine-tuned for 3"):
        load(make_job, folder, labels=["u", "v"])


def test_a_fine_tuned_head_is_taken_as_it_is(make_job: MakeJob, folder: Path) -> None:
    model = load(make_job, folder).model
    with torch.no_grad():
        model.classifier.weight.fill_(0.25)
    model.save_pretrained(folder)
    assert load(make_job, folder).model.classifier.weight.eq(0.25).all()


def drop(folder: Path, *names: str) -> None:
    state = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(names)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_folder_without_pooler_gets_a_new_one(make_job: MakeJob, folder: Path) -> None:
    drop(folder, "pooler.")
    load(make_job, folder)


def test_weights_that_the_files_lack_are_named(make_job: MakeJob, folder: Path) -> None:
    drop(folder, "encoder.layer.1.attention.output")
    with pytest.raises(ManifestError, match=r"lack 4 weights .* bert.encoder.layer.1.attention"):
        load(make_job, folder)


def test_weights_of_another_shape_are_named(make_job: MakeJob, folder: Path) -> None:
    change(folder, intermediate_size=48)
    with pytest.raises(ManifestError, match=r"model.path .* is \(.*\) where its config says"):
        load(make_job, folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", None),
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b'{"model_type": "no-such-type"}'),
        ("config.json", b'{"model_type": "bert", "hidden_size": "wide"}'),
        ("model.safetensors", None),
        ("model.safetensors", b"junk"),
    ],
)
def test_a_broken_folder_is_told_in_one_line(
    make_job: MakeJob, folder: Path, name: str, content: bytes | None
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(
        ManifestError, match=r"model\.path is .* which cannot be loaded: "
    ) as caught:
        load(make_job, folder)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_read(make_job: MakeJob, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ManifestError, match="cannot be loaded"):
        load(make_job, folder)


def test_a_hub_name_that_cannot_be_reached_is_told(make_job: MakeJob) -> None:
    job = make_job(model={"path": "owner/model"})
    with pytest.raises(
        ManifestError, match=r'model\.path is "owner/model", which cannot be loaded'
    ):
        load_model(job, found=("a", "b"))


def test_a_folder_without_tokenizer_is_refused(make_job: MakeJob, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ManifestError, match=r"which has no fast tokenizer \(tokenizer.json\)"):
        load(make_job, folder)


def test_a_tokenizer_with_more_pieces_than_the_model_is_refused(
    make_job: MakeJob, folder: Path, roberta_folder: Path
) -> None:
    RobertaTokenizerFast.from_pretrained(roberta_folder).save_pretrained(folder)
    with pytest.raises(ManifestError, match="whose tokenizer has 400 pieces and whose model 277"):
        load(make_job, folder)


def test_a_tokenizer_without_padding_token_is_refused(make_job: MakeJob, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    saved = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(saved | {"pad_token": None, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    with pytest.raises(ManifestError, match="whose tokenizer has no padding token"):
        load(make_job, folder)


def test_a_limit_beyond_the_models_positions_is_refused(
    make_job: MakeJob, bert_folder: Path, roberta_folder: Path
) -> None:
    for folder, limit in ((bert_folder, 64), (roberta_folder, 62)):
        path = {"path": str(folder)}
        load_model(make_job(model=path, data={"max_length": limit}), found=("a", "b"))
        job = make_job(model=path, data={"max_length": limit + 1})
        with pytest.raises(
            ManifestError, match=f"data.max_length is {limit + 1}; this model takes at"
        ):
            load_model(job, found=("a", "b"))


def test_inputs_that_the_model_does_not_take_are_not_made(make_job: MakeJob, folder: Path) -> None:
    config = DistilBertConfig(
        vocab_size=277, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=64
    )
    DistilBertModel(config).save_pretrained(folder)
    assert "token_type_ids" not in load(make_job, folder).tokenizer("film")


def test_the_librarys_own_reports_are_silent(
    make_job: MakeJob, bert_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load(make_job, bert_folder)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_discriminator_exported_from_pre_training_is_taken_with_its_weights(
    make_job: MakeJob, tmp_path: Path
) -> None:
    known = vocabulary()
    settings = replace(model_settings(32), layers=3, positions=64)
    judge = build_discriminator(settings, vocabulary=known, seed=5).eval()
    export_model(judge, vocabulary=known, folder=tmp_path / "judge")
    job = make_job(model={"path": str(tmp_path / "judge")}, data={"max_length": 64})
    loaded = load_model(job, found=("a", "b"))
    assert loaded.model.config.num_labels == 2
    state, own = loaded.model.electra.state_dict(), judge.electra.state_dict()
    assert state.keys() == own.keys()
    assert all(torch.equal(state[name], own[name]) for name in own)
    assert len(layers_of(loaded.model)) == 3
    (line,) = lines(1)
    inputs = loaded.tokenizer(line, return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == [known.cls, *known.encode(line), known.sep]
    output = loaded.model(**inputs, labels=torch.tensor([1]))
    assert output.loss.isfinite()
    assert output.logits.shape == (1, 2)


def test_a_decoder_needs_no_padding_token_and_keeps_no_keys_and_values_in_training(
    make_job: MakeJob, gpt2_folder: Path
) -> None:
    path = {"path": str(gpt2_folder), "task": "causal-language-modelling"}
    loaded = load_model(make_job(model=path, data={"join": True}))
    assert type(loaded.model).__name__ == "GPT2LMHeadModel"
    assert loaded.labels == ()
    assert loaded.tokenizer.pad_token_id is None
    assert loaded.tokenizer("a film").keys() == {"input_ids", "attention_mask"}
    assert loaded.model.config.use_cache is False
    assert loaded.model.config.joined_texts is True
    assert loaded.model.lm_head.weight is loaded.model.transformer.wte.weight
    with pytest.raises(ManifestError, match=r"data\.max_length is 49; this model takes at most 48"):
        load_model(make_job(model=path, data={"max_length": 49}))


def test_relative_positions_have_no_end_and_neither_decoder_keeps_keys_and_values(
    tmp_path: Path,
) -> None:
    job = load_job(make_files(tmp_path, family="t5", changes=PAIRS))
    model = load_model(job).model
    assert type(model).__name__ == "T5ForConditionalGeneration"
    assert positions_in(model) == sys.maxsize
    assert not model.config.use_cache
    assert not model.decoder.config.use_cache
    long = {**PAIRS, "data": {**PAIRS["data"], "max_length": 65}}
    with pytest.raises(ManifestError, match="this model takes at most 64 tokens"):
        load_model(load_job(make_files(tmp_path, family="t5", changes=long)))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    del weights["encoder.block.1.layer.0.SelfAttention.q.weight"]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ManifestError, match=r"lack 1 weights of its own config, such as encoder"):
        load_model(job)
