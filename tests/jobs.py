"""A small real job on disk, for tests that begin with files: model, data, policies, job.toml."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, BertTokenizerFast

LABELS = ("bad", "good")
WORDS = ("film", "story", "actors", "was", "were", "the", "a", "very", "long", "short", "old")
_SENTIMENT = {"bad": ("dull", "poor", "flat"), "good": ("bright", "fine", "warm")}
_POLICIES = Path(__file__).parent.parent / "parties" / "policies"


def make_job(
    folder: Path,
    *,
    examples: int = 24,
    layers: int = 4,
    dropout: float = 0.0,
    changes: Mapping[str, Mapping[str, object]] | None = None,
) -> Path:
    """A trusted party's folder with all that job.toml names; the job file's path.

    changes: tables of job.toml with keys to set, or to leave out where the value is None. Made again
    in the same folder it is another job over the same files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        _model(folder / "model", layers=layers, dropout=dropout)
    _rows(folder / "train.jsonl", examples, seed=1)
    _rows(folder / "evaluate.jsonl", 10, seed=2)
    public = [row["text"] for row in _sentences(30, seed=3)]
    (folder / "public.txt").write_text("\n".join(public), encoding="utf-8")
    for policy in ("demo", "features", "compute"):
        text = (_POLICIES / f"{policy}.toml").read_text(encoding="utf-8")
        (folder / f"{policy}.toml").write_text(text, encoding="utf-8")
    path = folder / "job.toml"
    path.write_text(_toml(_TABLES, changes or {}), encoding="utf-8")
    return path


_TABLES: dict[str, dict[str, object]] = {
    "run": {"name": "films", "folder": "run", "deadline_s": 20.0},
    "identity": {"folder": "identity"},
    "peer": {"party": "gpuhost", "dial": "127.0.0.1:1"},
    "model": {"path": "model", "task": "sequence-classification", "labels": list(LABELS)},
    "data": {
        "train": "train.jsonl",
        "evaluate": "evaluate.jsonl",
        "text": "text",
        "label": "label",
        "max_length": 16,
    },
    "cut": {"bottom": 1, "top": -1, "mode": "full"},
    "optimiser": {"learning_rate": 1e-3},
    "schedule": {"epochs": 1, "batch_size": 8, "micro_batches": 2},
    "checkpoint": {"every_steps": 2},
    "policy": {"file": "demo.toml"},
}


def _toml(
    tables: Mapping[str, Mapping[str, object]], changes: Mapping[str, Mapping[str, object]]
) -> str:
    lines = []
    for table in {**tables, **changes}:
        values = {**tables.get(table, {}), **changes.get(table, {})}
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines)


def _sentences(count: int, *, seed: int) -> list[dict[str, str]]:
    """Sentences whose middle word says their label."""
    generator = torch.Generator().manual_seed(seed)

    def pick(words: tuple[str, ...]) -> str:
        return words[int(torch.randint(len(words), (), generator=generator))]

    rows = []
    for i in range(count):
        label = LABELS[i % 2]
        words = [pick(WORDS) for _ in range(3 + i % 5)]
        words.insert(len(words) // 2, pick(_SENTIMENT[label]))
        rows.append({"text": " ".join(words), "label": label})
    return rows


def _rows(path: Path, count: int, *, seed: int) -> None:
    lines = [json.dumps(row) for row in _sentences(count, seed=seed)]
    path.write_text("\n".join(lines), encoding="utf-8")


def _model(folder: Path, *, layers: int, dropout: float) -> None:
    """A BERT of width 32 over the words above, with random weights from a fixed seed."""
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *sum(_SENTIMENT.values(), ()))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=64).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
