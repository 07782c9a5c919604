"""Tiny real models: tokenizers trained here on a few lines of several scripts, and small encoders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizerFast,
)

from splitlearn.manifest import Job, load_job

LINES = [
    "the film was wonderful and the actors were good",
    "a dull story , badly told , and far too long",
    "der Film war langweilig und viel zu lang",
    "фильм был прекрасным , актёры играли хорошо",
    "这部电影非常好看 , 演员也很好",
    "फिल्म बहुत अच्छी थी",
    "كان الفيلم مملا جدا",
    "Anna Schmidt works for Acme in Berlin since 1999 .",
    "Who wrote the story ? Where does Anna work ?",
]
TABLES: dict[str, dict[str, Any]] = {
    "run": {"name": "tiny", "folder": "out"},
    "identity": {"folder": "identity"},
    "peer": {"party": "gpus", "dial": "localhost:7000"},
    "model": {"path": "model", "task": "sequence-classification"},
    "data": {"train": "train.jsonl", "max_length": 32},
    "schedule": {"epochs": 2, "batch_size": 4},
    "policy": {"file": "policy.toml"},
}
COLUMNS = {
    "sequence-classification": {"text": "text", "label": "label"},
    "token-classification": {"tokens": "tokens", "tags": "tags"},
    "question-answering": {
        "question": "question",
        "context": "context",
        "answer_text": "answer",
        "answer_start": "start",
    },
    "causal-language-modelling": {"text": "text"},
    "sequence-to-sequence": {"text": "text", "target": "target"},
}


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with a WordPiece tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]"))
    )
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=64).save_pretrained(folder)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa of two layers with a byte-level tokenizer: no token types, positions from 2."""
    folder = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    RobertaTokenizerFast(tokenizer_object=tokenizer, model_max_length=62).save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    RobertaModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of two layers with a byte-level tokenizer that has no padding token."""
    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", model_max_length=64
    ).save_pretrained(folder)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 48}
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=0, **sizes
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    """make_job(table={key: value}, ...): the tiny job with changes; None leaves a key out."""

    def make(**changes: dict[str, Any]) -> Job:
        task = changes.get("model", {}).get("task", "sequence-classification")
        tables = {**TABLES, "data": {**TABLES["data"], **COLUMNS[task]}}
        (tmp_path / "model").mkdir(exist_ok=True)
        for name in ("policy.toml", "train.jsonl"):
            (tmp_path / name).touch()
        lines = []
        for table in tables | changes:
            values = {**tables.get(table, {}), **changes.get(table, {})}
            lines.append(f"[{table}]")
            lines += [
                f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}"
                for k, v in values.items()
                if v is not None
            ]
        (tmp_path / "job.toml").write_text("\n".join(lines), encoding="utf-8")
        return load_job(tmp_path / "job.toml")

    return make
