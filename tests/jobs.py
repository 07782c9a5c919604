"""A small real job on disk, for tests that begin with files, and the two parties that do it."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, BertTokenizerFast, PreTrainedTokenizerFast

from parties import compute
from splitlearn.roles import Role
from tests.federation import make_identity
from tests.tiny import CAUSAL_TASK, WRITERS, tiny_model

# The port of a compute party that is not there.
NOWHERE = 1
Changes = Mapping[str, Mapping[str, object]]
LABELS = ("bad", "good")
PAIRS: Changes = {
    "model": {"task": "sequence-to-sequence", "labels": None},
    "data": {"label": None, "target": "label"},
}
CAUSAL: Changes = {
    "model": {"task": CAUSAL_TASK, "labels": None},
    "data": {"label": None},
}
WORDS = ("film", "story", "actors", "was", "were", "the", "a", "very", "long", "short", "old")
_SENTIMENT = {"bad": ("dull", "poor", "flat"), "good": ("bright", "fine", "warm")}
_POLICIES = Path(__file__).parent.parent / "parties" / "policies"


def make_job(
    folder: Path,
    *,
    examples: int = 24,
    layers: int = 4,
    dropout: float = 0.0,
    changes: Changes | None = None,
    family: str = "bert",
) -> Path:
    """A trusted party's folder with all that job.toml names; the job file's path.

    changes: tables of job.toml with keys to set, or to leave out where the value is None. Made again
    in the same folder it is another job over the same files. family: of the model; `CAUSAL` has the
    changes that a decoder's job takes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists() and family == "bert":
        _model(folder / "model", layers=layers, dropout=dropout)
    elif not (folder / "model").exists():
        _decoder(folder / "model", family, layers=layers, dropout=dropout)
    _rows(folder / "train.jsonl", examples, seed=1)
    _rows(folder / "evaluate.jsonl", 10, seed=2)
    _rows(folder / "canary.jsonl", 12, seed=5)
    (folder / "public.txt").write_text("\n".join(public_lines(120)), encoding="utf-8")
    for policy in ("demo", "strict", "standard", "research", "compute"):
        text = (_POLICIES / f"{policy}.toml").read_text(encoding="utf-8")
        (folder / f"{policy}.toml").write_text(text, encoding="utf-8")
    path = folder / "job.toml"
    path.write_text(_toml(_TABLES, changes or {}), encoding="utf-8")
    return path


def public_lines(count: int) -> list[str]:
    """Texts that anybody may know, of the same language as a job's."""
    return [row["text"] for row in _sentences(count, seed=3)]


def make_clinic(folder: Path, changes: Changes | None = None, *, family: str = "bert") -> Path:
    """A job of party clinic, a member of the federation that lies in `folder`."""
    identity = make_identity(folder, "clinic", Role.TRUSTED)
    changes = {**(changes or {}), "identity": {"folder": str(identity.folder)}}
    return make_job(folder / "clinic", changes=changes, family=family)


def make_gpuhost(
    folder: Path, *, port: int, model: Path | None = None, party: str = "gpuhost"
) -> Path:
    """The settings of party gpuhost, or another, who works for the clinic; the file's path."""
    identity = make_identity(folder, party, Role.COMPUTE)
    tables: dict[str, dict[str, object]] = {
        "run": {"folder": party, "deadline_s": 20.0},
        "identity": {"folder": str(identity.folder)},
        "peer": {"party": "clinic", "listen": f"127.0.0.1:{port}"},
        "model": {"path": None if model is None else str(model)},
        "policy": {"file": "clinic/compute.toml"},
    }
    path = folder / ("compute.toml" if party == "gpuhost" else f"{party}.toml")
    path.write_text(_toml(tables, {}), encoding="utf-8")
    return path


@contextmanager
def gpuhost(
    folder: Path,
    *jobs: Path,
    runs: int = 1,
    model: Path | None = None,
    party: str = "gpuhost",
    nowhere: int = NOWHERE,
) -> Iterator[int]:
    """Party gpuhost, or another, at work in a thread, for so many runs; its port, which the jobs are told
    instead of `nowhere`.
    """
    port = a_port()
    settings = make_gpuhost(folder, port=port, model=model, party=party)
    for job in jobs:
        text = job.read_text(encoding="utf-8")
        told = f'"127.0.0.1:{port}"'
        job.write_text(text.replace(f'"127.0.0.1:{nowhere}"', told), encoding="utf-8")
    thread = threading.Thread(
        target=compute.compute, args=(settings,), kwargs={"runs": runs, "threads": 1}
    )
    thread.start()
    yield port
    thread.join(60)
    assert not thread.is_alive()


def a_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_TABLES: dict[str, dict[str, object]] = {
    "run": {"name": "films", "folder": "run", "deadline_s": 20.0},
    "identity": {"folder": "identity"},
    "peer": {"party": "gpuhost", "dial": f"127.0.0.1:{NOWHERE}"},
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
        lines += [
            f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None
        ]
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


def _decoder(folder: Path, family: str, *, layers: int, dropout: float) -> None:
    """A decoder of width 32 over the same words, whose tokenizer has an end of text and no padding."""
    words = ("<pad>", "<unk>", "<s>", "</s>", *WORDS, *sum(_SENTIMENT.values(), ()))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="<pad>" if family in WRITERS else None,
        model_max_length=64,
    ).save_pretrained(folder)
    tiny_model(
        family,
        layers=layers,
        dropout=dropout,
        vocab_size=len(words),
        max_position_embeddings=64,
        use_cache=True,
        pad_token_id=0,
    ).save_pretrained(folder)


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
