"""The pre-trained model of a job with its task's head, and its tokenizer.

Weights come from safetensors files only and no code of a model's author runs. A folder is read without
any network; a hub name asks the hub. What the library would pass over in silence is an error here:
weights that the files lack, a tokenizer without a vocabulary, a text longer than the model's positions.
"""

import inspect
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from splitlearn.data.quiet import quiet
from splitlearn.errors import ManifestError
from splitlearn.manifest import Job

__all__ = ["Loaded", "load_model", "load_public", "positions_in"]


@dataclass(frozen=True)
class Loaded:
    """`labels`: the class of each output, by number; empty for tasks without classes."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...]


def load_model(job: Job, *, found: Sequence[str] = ()) -> Loaded:
    """Model in float32 on the CPU, in evaluation mode, with its fast tokenizer; else ManifestError.

    found: labels of the training data, taken where neither the job nor the model names its own. A head
    that the files lack is drawn from the job's seed; torch's own generator stays where it was.
    """
    path, task = job.model.path, job.model.task
    local = Path(path).is_dir()
    # Byte-level tokenizers take single words only so; the others don't mind.
    words = {"add_prefix_space": True} if task == "token-classification" else {}
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.run.seed)
            config = AutoConfig.from_pretrained(path, local_files_only=local)
            labels = _labels(job, config=config, found=found)
            if labels:
                config.id2label = dict(enumerate(labels))
                config.label2id = {label: number for number, label in enumerate(labels)}
                config.problem_type = "single_label_classification"
            model, report = _HEADS[task].from_pretrained(
                path,
                config=config,
                local_files_only=local,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation=job.model.attention,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local, **words)
    except _ERRORS as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise job.fault("model.path", f'is "{path}", which cannot be loaded: {reason}') from None
    _check_weights(
        job, model=model, missing=report["missing_keys"], other=report["mismatched_keys"]
    )
    _check_tokenizer(job, model=model, tokenizer=tokenizer)
    if job.writes:
        for part in model.modules():  # a decoder beside its encoder has a config of its own
            if isinstance(part, PreTrainedModel):
                part.config.use_cache = False  # no text is gone on with while it trains
    if job.predicts:
        model.loss_type = "ForCausalLM"  # GPT-2's is not told from its name, and a warning says so
        model.config.joined_texts = job.data.join
    if job.cut.stack != "encoder":
        model.config.cut_stack = job.cut.stack
    return Loaded(model=model, tokenizer=tokenizer, labels=labels)


def load_public(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A base model without a head, in float32 and evaluation mode, with its tokenizer.

    What an attacker takes, and an auditor in its place. ManifestError if it cannot be loaded.
    """
    local = Path(path).is_dir()
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            model = AutoModel.from_pretrained(
                path, local_files_only=local, use_safetensors=True, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
    except _ERRORS as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ManifestError(f"model {path} cannot be loaded: {reason}") from None
    return model, tokenizer


_HEADS = {
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
    "causal-language-modelling": AutoModelForCausalLM,
    "sequence-to-sequence": AutoModelForSeq2SeqLM,
}
# What the library raises for files it cannot use; a wrong config.json raises nearly anything.
_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)


def _labels(job: Job, *, config: PreTrainedConfig, found: Sequence[str]) -> tuple[str, ...]:
    """The job's labels, else those of a model that was fine-tuned with them, else the data's."""
    if job.model.task not in ("sequence-classification", "token-classification"):
        return ()
    if job.model.labels is not None:
        return job.model.labels
    names = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    named = tuple(names[number] for number in sorted(names))
    own = any(name != f"LABEL_{number}" for number, name in enumerate(named))
    if named and own and set(found) <= set(named):
        return named
    if len(found) < 2:
        raise job.fault(
            "model.labels",
            f"is missing and the training data has {len(found)}; classification takes 2 or more",
        )
    return tuple(found)


def _check_weights(
    job: Job,
    *,
    model: PreTrainedModel,
    missing: Collection[str],
    other: Collection[tuple[str, torch.Size, torch.Size]],
) -> None:
    prefix = model.base_model_prefix
    base = f"{prefix}." if hasattr(model, prefix) else ""  # some have their head beside their parts
    # A pooler is part of the head for our purposes: masked-LM checkpoints have none.
    lost = sorted(key for key in missing if key.startswith(base) and ".pooler." not in key)
    if lost:
        raise job.fault(
            "model.path",
            f'is "{job.model.path}", whose files lack {len(lost)} weights of its own config, '
            f"such as {lost[0]}; it takes a complete model",
        )
    for key, theirs, ours in other:
        if key.startswith(base):
            raise job.fault(
                "model.path",
                f'is "{job.model.path}", whose weight {key} is {tuple(theirs)} where its config says '
                f"{tuple(ours)}",
            )
        raise job.fault(
            "model.labels",
            f"has {ours[0]} labels, but the model was fine-tuned for {theirs[0]} ({key}); "
            "name its labels there, or take the model it was made from",
        )


def _check_tokenizer(
    job: Job, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Also drops the inputs that the tokenizer offers and the model does not take."""
    path = job.model.path
    if not tokenizer.is_fast or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise job.fault("model.path", f'is "{path}", which has no fast tokenizer (tokenizer.json)')
    if tokenizer.pad_token_id is None and not job.predicts:
        raise job.fault("model.path", f'is "{path}", whose tokenizer has no padding token')
    words = model.get_input_embeddings()
    pieces = words.num_embeddings if isinstance(words, nn.Embedding) else len(tokenizer)
    if len(tokenizer) > pieces:
        raise job.fault(
            "model.path",
            f'is "{path}", whose tokenizer has {len(tokenizer)} pieces and whose model {pieces}',
        )
    limit = min(positions_in(model), tokenizer.model_max_length)
    if job.data.max_length > limit:
        raise job.fault(
            "data.max_length",
            f"is {job.data.max_length}; this model takes at most {limit} tokens",
        )
    taken = set(inspect.signature(model.forward).parameters)
    if getattr(model.config, "type_vocab_size", 2) < 2 or job.predicts:
        taken.discard("token_type_ids")
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in taken]


def positions_in(model: PreTrainedModel) -> int:
    """Positions a text may have, without end where they are relative ones only.

    RoBERTa's kin begin to count after the padding token's number.
    """
    embeddings = getattr(model.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return int(getattr(model.config, "max_position_embeddings", sys.maxsize))
    skipped = 0 if table.padding_idx is None else table.padding_idx + 1
    return table.num_embeddings - skipped
