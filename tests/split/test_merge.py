import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

import splitlearn
from splitlearn.errors import ManifestError
from splitlearn.split.bottleneck import fit_pca
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.merge import CUT_FILE, WEIGHTS_FILE, load_merged, merged, save_merged
from splitlearn.split.stage import factor, remote_stage, split
from splitlearn.split.trunk import Trunk
from tests.tiny import (
    DECODERS,
    ENCODERS,
    TASKS,
    WRITERS,
    TinyBatch,
    real_model_folder,
    tiny_batch,
    tiny_model,
)

PCA, SFT = Bottleneck("pca", 6), Bottleneck("sft", 4)
AUTO = dict(
    zip(
        TASKS,
        (
            AutoModelForSequenceClassification,
            AutoModelForTokenClassification,
            AutoModelForQuestionAnswering,
        ),
        strict=True,
    )
)


def parts(model: PreTrainedModel, *, cut: Cut, batch: TinyBatch) -> tuple[PreTrainedModel, Trunk]:
    bases = {
        "lower": fit_pca(model, [batch.inputs], layer=cut.first, rank=max(1, cut.lower.rank)),
        "upper": fit_pca(model, [batch.inputs], layer=cut.last, rank=max(1, cut.upper.rank)),
    }
    local, trunk = split(factor(model, cut=cut, bases=bases), cut=cut)
    remote_stage(local).exchange = lambda h_BTD: trunk(h_BTD, lengths=batch.lengths)
    local.train(False)
    trunk.train(False)
    return local, trunk


def outputs(model: PreTrainedModel, batch: TinyBatch) -> list[torch.Tensor]:
    with torch.no_grad():
        found = model(**batch.inputs, **(batch.labels if batch.target else {}))
    return [value for key, value in found.items() if key.endswith("logits")]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "cut", [Cut(1, 3), Cut(2, 3, PCA, SFT), Cut(1, 4, SFT, PCA), Cut(1, 3, upper=PCA)], ids=str
)
@pytest.mark.parametrize("model_type", ["bert", "distilbert", "electra"])
def test_the_saved_model_gives_the_split_models_logits_to_the_bit(
    model_type: str, cut: Cut, task: str, tmp_path: Path
) -> None:
    model = tiny_model(model_type, task=task, dropout=0.1)
    batch = tiny_batch(model)
    local, trunk = parts(model, cut=cut, batch=batch)
    expected = outputs(local, batch)
    whole = merged(local, trunk=trunk, cut=cut)
    assert same(outputs(whole, batch), expected)
    save_merged(tmp_path / "model", model=whole, cut=cut)
    loaded = load_merged(tmp_path / "model")
    assert same(outputs(loaded, batch), expected)
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model_type", ENCODERS)
def test_without_a_bottleneck_transformers_alone_loads_the_same_model(
    model_type: str, task: str, tmp_path: Path
) -> None:
    model = tiny_model(model_type, task=task)
    batch, cut = tiny_batch(model), Cut(1, 3)
    local, trunk = parts(model, cut=cut, batch=batch)
    expected = outputs(local, batch)
    save_merged(tmp_path, model=merged(local, trunk=trunk, cut=cut), cut=cut)
    assert same(outputs(AUTO[task].from_pretrained(tmp_path).eval(), batch), expected)
    assert not (tmp_path / CUT_FILE).exists()


@pytest.mark.parametrize("cut", [Cut(1, 3), Cut(2, 3, PCA, PCA)], ids=str)
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_decoder_is_saved_as_exactly_and_its_head_stays_its_embeddings(
    model_type: str, cut: Cut, tmp_path: Path
) -> None:
    model = tiny_model(model_type)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.config.joined_texts = True
    batch = tiny_batch(model)
    local, trunk = parts(model, cut=cut, batch=batch)
    trunk.config.joined_texts = False
    expected = outputs(local, batch)
    save_merged(tmp_path, model=merged(local, trunk=trunk, cut=cut), cut=cut)
    loaded = load_merged(tmp_path)
    assert same(outputs(loaded, batch), expected)
    head, words = loaded.get_output_embeddings(), loaded.get_input_embeddings()
    assert (head.weight is words.weight) == tied
    written = json.loads((tmp_path / "config.json").read_text())
    assert "joined_texts" not in written
    assert written["use_cache"] is True
    if not cut.narrow:
        plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert same(outputs(plain, batch), expected)


@pytest.mark.parametrize("cut", [Cut(1, 3), Cut(2, 3, PCA, PCA)], ids=str)
@pytest.mark.parametrize("model_type", WRITERS)
def test_a_model_with_a_decoder_above_its_encoder_is_saved_as_exactly(
    model_type: str, cut: Cut, tmp_path: Path
) -> None:
    model = tiny_model(model_type)
    batch = tiny_batch(model)
    local, trunk = parts(model, cut=cut, batch=batch)
    expected = outputs(local, batch)
    save_merged(tmp_path, model=merged(local, trunk=trunk, cut=cut), cut=cut)
    loaded = load_merged(tmp_path)
    assert same(outputs(loaded, batch), expected)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    if not cut.narrow:
        plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
        assert same(outputs(plain, batch), expected)


@pytest.mark.parametrize("cut", [Cut(1, 3), Cut(2, 3, PCA, PCA)], ids=str)
def test_a_head_of_its_own_stays_one_whatever_the_config_says(cut: Cut, tmp_path: Path) -> None:
    """T5 1.1: its config calls the head tied once it is read, and its files have two of them."""
    model = tiny_model("t5", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(60, 32))
    model.save_pretrained(tmp_path / "published")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "published")
    assert model.config.scale_decoder_outputs is False
    batch = tiny_batch(model)
    local, trunk = parts(model, cut=cut, batch=batch)
    expected = outputs(local, batch)
    save_merged(tmp_path / "model", model=merged(local, trunk=trunk, cut=cut), cut=cut)
    loaded = load_merged(tmp_path / "model")
    assert same(outputs(loaded, batch), expected)
    assert loaded.lm_head.weight is not loaded.shared.weight
    assert loaded.encoder.embed_tokens.weight is loaded.shared.weight
    if not cut.narrow:
        plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
        assert same(outputs(plain, batch), expected)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("upper", [Bottleneck(), Bottleneck("pca", 8), Bottleneck("sft", 8)])
def test_a_real_model_survives_splitting_merging_and_loading(
    upper: Bottleneck, count: int, tmp_path: Path
) -> None:
    """One text of nine tokens, too: small products are where the alignment of weights shows."""
    model = AutoModelForSequenceClassification.from_pretrained(real_model_folder(), num_labels=5)
    tokenizer = AutoTokenizer.from_pretrained(real_model_folder())
    text = ["Rain and wind in the north.", "The committee met on Thursday.", "Ωmega, naïve, 東京"][
        :count
    ]
    inputs = dict(tokenizer(text, padding=True, return_tensors="pt"))
    lengths = tuple(inputs["attention_mask"].sum(1).tolist())
    batch, cut = TinyBatch(inputs, {}, lengths), Cut(2, 5, upper=upper)
    local, trunk = parts(model, cut=cut, batch=batch)
    expected = outputs(local, batch)
    save_merged(tmp_path, model=merged(local, trunk=trunk, cut=cut), cut=cut, tokenizer=tokenizer)
    again = dict(AutoTokenizer.from_pretrained(tmp_path)(text, padding=True, return_tensors="pt"))
    assert torch.equal(again["input_ids"], inputs["input_ids"])
    assert same(outputs(load_merged(tmp_path), batch), expected)
    if not cut.narrow:
        plain = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        assert same(outputs(plain, batch), expected)


@pytest.mark.parametrize("cut", [Cut(1, 3), Cut(1, 3, upper=SFT)], ids=str)
def test_the_attention_that_was_trained_with_is_the_one_that_is_loaded(
    cut: Cut, tmp_path: Path
) -> None:
    model = tiny_model("bert", attention="eager")
    batch = tiny_batch(model)
    local, trunk = parts(model, cut=cut, batch=batch)
    expected = outputs(local, batch)
    save_merged(tmp_path, model=merged(local, trunk=trunk, cut=cut), cut=cut)
    loaded = load_merged(tmp_path)
    assert loaded.config._attn_implementation == "eager"
    assert same(outputs(loaded, batch), expected)


def test_a_narrow_model_cannot_be_loaded_as_a_plain_one_by_mistake(tmp_path: Path) -> None:
    model = factor(tiny_model("bert"), cut=Cut(1, 3, SFT), bases={})
    save_merged(tmp_path, model=model, cut=Cut(1, 3, SFT))
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_merging_copies_so_that_training_goes_on_undisturbed() -> None:
    model = tiny_model("bert")
    batch, cut = tiny_batch(model), Cut(1, 3, SFT, SFT)
    local, trunk = parts(model, cut=cut, batch=batch)
    whole = merged(local, trunk=trunk, cut=cut)
    expected = outputs(whole, batch)
    with torch.no_grad():
        for part in (local, trunk):
            for weight in part.parameters():
                weight.zero_()
    assert same(outputs(whole, batch), expected)
    assert remote_stage(local).exchange is not None
    configs = {id(m.config) for m in whole.modules() if hasattr(m, "config")}
    assert configs == {id(whole.config)}


@pytest.mark.parametrize(
    ("first", "second"), [(Cut(1, 3), Cut(1, 3, SFT)), (Cut(1, 3, SFT), Cut(1, 3))]
)
def test_one_kind_of_export_does_not_overwrite_the_other(
    first: Cut, second: Cut, tmp_path: Path
) -> None:
    save_merged(tmp_path, model=factor(tiny_model("bert"), cut=first, bases={}), cut=first)
    files = sorted(tmp_path.iterdir())
    with pytest.raises(ManifestError, match="choose a new folder"):
        save_merged(tmp_path, model=factor(tiny_model("bert"), cut=second, bases={}), cut=second)
    assert sorted(tmp_path.iterdir()) == files


def test_an_export_of_the_same_kind_is_replaced(tmp_path: Path) -> None:
    cut = Cut(1, 3, SFT)
    for seed in (0, 1):
        model = factor(tiny_model("bert", seed=seed), cut=cut, bases={}).eval()
        save_merged(tmp_path, model=model, cut=cut)
    batch = tiny_batch(model)
    assert same(outputs(load_merged(tmp_path), batch), outputs(model, batch))


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ManifestError, match="cannot be written"):
        save_merged(tmp_path / "file" / "model", model=tiny_model("bert"), cut=Cut(1, 3))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (CUT_FILE, b""),
        (CUT_FILE, b'{"version":2,"cut":{"first":1,"last":3}}'),
        (CUT_FILE, b'{"version":1,"cut":{"first":0,"last":3}}'),
        (CUT_FILE, b'{"version":1,"cut":{"first":1,"last":3}}'),
        (CUT_FILE, b'{"version":1,"cut":{"first":1,"last":3},"run":"x"}'),
        (WEIGHTS_FILE, b""),
        ("config.json", b"{}"),
        ("config.json", b'{"model_type":"gpt2","architectures":["GPT2ForSequenceClassification"]}'),
        ("config.json", b'{"model_type":"bert","architectures":["BertForMaskedLM"]}'),
        ("config.json", b'{"model_type":"bert"}'),
        ("config.json", b'{"model_type":"bert","hidden_size":"wide","architectures":["A"]}'),
    ],
    ids=str,
)
def test_a_damaged_export_is_refused_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    cut = Cut(1, 3, SFT)
    save_merged(tmp_path, model=factor(tiny_model("bert"), cut=cut, bases={}), cut=cut)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        load_merged(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nowhere"):
        load_merged(tmp_path / "nowhere")


def test_the_note_beside_a_narrow_model_reads_as_what_it_says(tmp_path: Path) -> None:
    cut = Cut(1, 3, upper=SFT)
    save_merged(tmp_path, model=factor(tiny_model("bert"), cut=cut, bases={}), cut=cut)
    assert json.loads((tmp_path / CUT_FILE).read_text()) == {
        "version": 1,
        "cut": {
            "first": 1,
            "last": 3,
            "lower": {"method": "none", "rank": 0},
            "upper": {"method": "sft", "rank": 4},
        },
    }


def test_the_package_offers_load_merged_and_imports_no_torch_before() -> None:
    assert splitlearn.load_merged is load_merged
    code = "import sys, splitlearn; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    with pytest.raises(AttributeError, match="no attribute 'load_others'"):
        splitlearn.load_others  # noqa: B018
