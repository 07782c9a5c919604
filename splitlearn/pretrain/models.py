"""Masked-LM generators and replaced-token discriminators: built, loaded, checked, exported.

The classes are transformers' own; ELECTRA's where a model is built from nothing.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertModel,
    ElectraConfig,
    ElectraForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.hub import cached_file

from splitlearn.data.quiet import quiet
from splitlearn.errors import AuditError, ManifestError
from splitlearn.pretrain.adopt import discriminator_from_bert
from splitlearn.pretrain.permutation import Permutation
from splitlearn.pretrain.settings import ModelSettings
from splitlearn.pretrain.vocabulary import Vocabulary, load_vocabulary

__all__ = [
    "build_discriminator",
    "build_generator",
    "export_model",
    "positions_of",
    "rename_embeddings",
]


def build_generator(
    settings: ModelSettings, *, vocabulary: Vocabulary, seed: int
) -> PreTrainedModel:
    """A masked-LM model in float32 on the CPU, of any family if it is loaded.

    Raises ManifestError for a model that cannot be loaded, lacks its head, or has another vocabulary.
    """
    if settings.path is None:
        return _built(AutoModelForMaskedLM, settings, vocabulary=vocabulary, seed=seed)
    return _loaded(AutoModelForMaskedLM, settings, vocabulary=vocabulary)


def build_discriminator(
    settings: ModelSettings, *, vocabulary: Vocabulary, seed: int
) -> PreTrainedModel:
    """An ELECTRA discriminator in float32 on the CPU; loaded, its files have to be complete too.

    An encoder of BERT's kind will do to begin from: its head is drawn by `seed`.
    """
    if settings.path is None:
        return _built(AutoModelForPreTraining, settings, vocabulary=vocabulary, seed=seed)
    if _type_of(settings.path) == "bert":
        bert = _loaded(BertModel, settings, vocabulary=vocabulary, without=("pooler.",))
        assert isinstance(bert, BertModel)
        return discriminator_from_bert(bert, seed=seed)
    return _loaded(ElectraForPreTraining, settings, vocabulary=vocabulary)


def positions_of(model: PreTrainedModel) -> int:
    """Tokens of the longest example that the model takes; RoBERTa's kin spend the first on padding."""
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return int(model.config.max_position_embeddings)
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def export_model(model: PreTrainedModel, *, vocabulary: Vocabulary, folder: Path) -> None:
    """A folder that AutoModel and AutoTokenizer load; whole or absent. What lay there is replaced.

    Raises AuditError where it cannot be written.
    """
    part = folder.with_name(f".{folder.name}.part")
    limit = positions_of(model)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=vocabulary.tokenizer,
        model_max_length=limit,
        model_input_names=["input_ids", "attention_mask"],
        **{
            f"{role}_token": _token(vocabulary, role)
            for role in ("pad", "cls", "sep", "mask", "unk")
        },
    )
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with quiet():
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        # The library may write its own spelling; ours is the one with the agreed digest.
        vocabulary.save(part / "tokenizer.json")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except (OSError, SafetensorError, ManifestError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise AuditError(
            f"the model cannot be written to {folder}: {error}; free space there or choose another "
            "folder, then export again"
        ) from error


def rename_embeddings(model: PreTrainedModel, *, permutation: Permutation) -> None:
    """Make a model that was trained on permuted ids one for the vocabulary's own: by whoever has the key."""
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    names = torch.from_numpy(
        permutation.permute(np.arange(permutation.size, dtype=np.int32))
    ).long()
    with torch.no_grad():
        table.weight[: permutation.size] = table.weight[names]


# What the library raises for files it cannot use; a wrong config.json raises nearly anything.
_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)


def _built(
    kind: type[AutoModelForMaskedLM] | type[AutoModelForPreTraining],
    settings: ModelSettings,
    *,
    vocabulary: Vocabulary,
    seed: int,
) -> PreTrainedModel:
    config = ElectraConfig(
        vocab_size=vocabulary.size,
        embedding_size=settings.embedding,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.inner,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        max_position_embeddings=settings.positions,
        pad_token_id=vocabulary.pad,
        initializer_range=settings.spread,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = kind.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=settings.attention, dtype=torch.float32
        )
    return model


def _type_of(path: str) -> str:
    """The model type that a folder or a hub name is of."""
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=Path(path).is_dir())
    except _ERRORS as error:
        raise ManifestError(f"model {path} cannot be loaded: {_reason(error)}") from None
    return str(config.model_type)


def _loaded(
    kind: type[AutoModelForMaskedLM] | type[ElectraForPreTraining] | type[BertModel],
    settings: ModelSettings,
    *,
    vocabulary: Vocabulary,
    without: tuple[str, ...] = (),
) -> PreTrainedModel:
    """without: beginnings of weights' names that the files may lack."""
    path = settings.path
    assert path is not None
    local = Path(path).is_dir()
    try:
        with quiet():
            model, report = kind.from_pretrained(  # type: ignore[misc]  # a pair, by its last argument
                path,
                local_files_only=local,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation=settings.attention,
                output_loading_info=True,
            )
            file = cached_file(path, "tokenizer.json", local_files_only=local)
    except _ERRORS as error:
        raise ManifestError(f"model {path} cannot be loaded: {_reason(error)}") from None
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(without))
    if missing:
        raise ManifestError(
            f"model {path} lacks {len(missing)} weights of a {type(model).__name__}, such as "
            f"{missing[0]}; take a model that was trained as one, or build one by its sizes"
        )
    assert file is not None, "cached_file raises for a missing file"
    load_vocabulary(Path(file), digest=vocabulary.digest)
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    if table.num_embeddings < vocabulary.size:
        raise ManifestError(
            f"model {path} has {table.num_embeddings} embeddings, and the vocabulary has "
            f"{vocabulary.size} ids; take a model of this vocabulary"
        )
    loaded: PreTrainedModel = model
    return loaded


def _token(vocabulary: Vocabulary, role: str) -> str:
    token = vocabulary.tokenizer.id_to_token(getattr(vocabulary, role))
    assert token is not None
    return str(token)


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
