"""Which models can be cut, as a table: where their layers are and what decides one of them.

One row a model type. Everything else in this room reads the row and knows no model by name. The
rows describe transformers' own classes; no layer is written anew here. What is not in the table
cannot be cut, and a peer cannot name a class: it names a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from splitlearn.errors import ManifestError

__all__ = [
    "ACTIVATIONS",
    "ATTENTIONS",
    "FAMILIES",
    "Family",
    "Halves",
    "base_of",
    "empty_config",
    "empty_layer",
    "family_of",
    "fields_of",
    "layers_of",
    "replace_layers",
    "rotary_of",
]

# Wire name -> transformers' name. Activations with weights of their own are left out on purpose.
ACTIVATIONS: dict[str, str] = {
    "gelu": "gelu",
    "gelu-new": "gelu_new",
    "gelu-fast": "gelu_fast",
    "gelu-tanh": "gelu_pytorch_tanh",
    "quick-gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "swish",
    "mish": "mish",
    "tanh": "tanh",
}

# The two implementations that give the same bits on every machine with the same CPU kernels.
ATTENTIONS: tuple[str, ...] = ("sdpa", "eager")


@dataclass(frozen=True)
class Halves:
    """Dotted names, inside one block, of the parts that a cut through the block separates.

    attention_norm is None where the attention module adds its residual and norms by itself.
    """

    attention: str
    attention_norm: str | None
    expand: str
    activation: str
    contract: str
    dropout: str
    norm: str


@dataclass(frozen=True)
class Family:
    """One row: a model type of transformers.

    package: module under transformers.models, and `stem` what its file names end in; config and
    layer: class names; numbered: the layer is told its own number; layers: dotted name of the
    ModuleList below the base model; fields: wire name -> attribute of the config. halves: None where
    no cut runs through a block. embeddings: children of the base model that stand before its layers.
    causal: a token sees those before it only, and layers are called by keyword. rotary: class that
    makes tables of angles from positions, for families that have one. plain: config switches that
    change what a layer computes, and the value that is supported. walker: the part of a base model that
    walks the layers, where it has another beside it, and drops out what the embeddings give. fixed:
    weights that are a formula's and never train.
    """

    model_type: str
    package: str
    stem: str
    config: str
    layer: str
    numbered: bool
    layers: str
    fields: Mapping[str, str]
    halves: Halves | None
    embeddings: tuple[str, ...] = ("embeddings", "embeddings_project")
    causal: bool = False
    rotary: str | None = None
    plain: Mapping[str, object] = field(default_factory=dict)
    walker: str = ""
    fixed: tuple[str, ...] = ()


_BERT_FIELDS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention-dropout": "attention_probs_dropout_prob",
    "norm-epsilon": "layer_norm_eps",
    "attention": "_attn_implementation",
}

_DISTILBERT_FIELDS = {
    "layers": "n_layers",
    "width": "dim",
    "heads": "n_heads",
    "inner": "hidden_dim",
    "activation": "activation",
    "dropout": "dropout",
    "attention-dropout": "attention_dropout",
    "attention": "_attn_implementation",
}

_GPT2_FIELDS = {
    "layers": "n_layer",
    "width": "n_embd",
    "heads": "n_head",
    "inner": "n_inner",
    "activation": "activation_function",
    "dropout": "resid_pdrop",
    "attention-dropout": "attn_pdrop",
    "norm-epsilon": "layer_norm_epsilon",
    "attention": "_attn_implementation",
    "joined": "joined_texts",
}

_LLAMA_FIELDS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "key-value-heads": "num_key_value_heads",
    "head-width": "head_dim",
    "inner": "intermediate_size",
    "activation": "hidden_act",
    "attention-dropout": "attention_dropout",
    "norm-epsilon": "rms_norm_eps",
    "rope-base": "rope_parameters",
    "attention": "_attn_implementation",
    "joined": "joined_texts",
}

_BERT_HALVES = Halves(
    attention="attention",
    attention_norm=None,
    expand="intermediate.dense",
    activation="intermediate.intermediate_act_fn",
    contract="output.dense",
    dropout="output.dropout",
    norm="output.LayerNorm",
)

_DISTILBERT_HALVES = Halves(
    attention="attention",
    attention_norm="sa_layer_norm",
    expand="ffn.lin1",
    activation="ffn.activation",
    contract="ffn.lin2",
    dropout="ffn.dropout",
    norm="output_layer_norm",
)


def _bert(model_type: str, package: str, name: str, *, stem: str | None = None) -> Family:
    return Family(
        model_type=model_type,
        package=package,
        stem=stem or package,
        config=f"{name}Config",
        layer=f"{name}Layer",
        numbered=True,
        layers="encoder.layer",
        fields=_BERT_FIELDS,
        halves=_BERT_HALVES,
    )


def _llama(
    model_type: str, name: str, *, more: Mapping[str, str], plain: Mapping[str, object]
) -> Family:
    return Family(
        model_type=model_type,
        package=model_type,
        stem=model_type,
        config=f"{name}Config",
        layer=f"{name}DecoderLayer",
        numbered=True,
        layers="layers",
        fields=_LLAMA_FIELDS | dict(more),
        halves=None,
        embeddings=("embed_tokens",),
        causal=True,
        rotary=f"{name}RotaryEmbedding",
        plain=plain,
    )


def _bart(
    model_type: str, name: str, *, embeddings: tuple[str, ...], fixed: tuple[str, ...]
) -> Family:
    """The encoder's layers of a model that has a decoder, too; that stays above the upper cut."""
    return Family(
        model_type=model_type,
        package=model_type,
        stem=model_type,
        config=f"{name}Config",
        layer=f"{name}EncoderLayer",
        numbered=True,
        layers="encoder.layers",
        fields={
            "layers": "encoder_layers",
            "width": "d_model",
            "heads": "encoder_attention_heads",
            "inner": "encoder_ffn_dim",
            "activation": "activation_function",
            "dropout": "dropout",
            "attention-dropout": "attention_dropout",
            "inner-dropout": "activation_dropout",
            "attention": "_attn_implementation",
        },
        halves=None,
        embeddings=("shared", "encoder.embed_tokens", "encoder.embed_positions", *embeddings),
        plain={"encoder_layerdrop": 0.0},
        walker="encoder",
        fixed=fixed,
    )


_BIAS = {"attention-bias": "attention_bias"}


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        _bert("bert", "bert", "Bert"),
        _bert("roberta", "roberta", "Roberta"),
        _bert("xlm-roberta", "xlm_roberta", "XLMRoberta"),
        _bert("camembert", "camembert", "Camembert"),
        _bert("electra", "electra", "Electra"),
        _bert("ernie", "ernie", "Ernie"),
        _bert("data2vec-text", "data2vec", "Data2VecText", stem="data2vec_text"),
        Family(
            model_type="distilbert",
            package="distilbert",
            stem="distilbert",
            config="DistilBertConfig",
            layer="TransformerBlock",
            numbered=False,
            layers="transformer.layer",
            fields=_DISTILBERT_FIELDS,
            halves=_DISTILBERT_HALVES,
        ),
        Family(
            model_type="gpt2",
            package="gpt2",
            stem="gpt2",
            config="GPT2Config",
            layer="GPT2Block",
            numbered=True,
            layers="h",
            fields=_GPT2_FIELDS,
            halves=None,
            embeddings=("wte", "wpe", "drop"),
            causal=True,
            plain={
                "scale_attn_weights": True,
                "scale_attn_by_inverse_layer_idx": False,
                "reorder_and_upcast_attn": False,
            },
        ),
        _bart("bart", "Bart", embeddings=("encoder.layernorm_embedding",), fixed=()),
        _bart(
            "marian",
            "Marian",
            embeddings=(),
            fixed=("encoder.embed_positions", "decoder.embed_positions"),
        ),
        _llama("llama", "Llama", more={**_BIAS, "inner-bias": "mlp_bias"}, plain={}),
        _llama("mistral", "Mistral", more={"window": "sliding_window"}, plain={}),
        _llama("qwen2", "Qwen2", more={}, plain={"use_sliding_window": False}),
        _llama("qwen3", "Qwen3", more=_BIAS, plain={"use_sliding_window": False}),
    )
}


def family_of(model: PreTrainedModel) -> Family:
    """The model's row. ManifestError if it has none, or if its config asks for what no row does."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ManifestError(
            f"a model of type {config.model_type!r} cannot be cut; "
            f"choose one of {', '.join(sorted(FAMILIES))}"
        )
    for switch, plain in (_PLAIN | dict(family.plain)).items():
        if getattr(config, switch, plain) != plain:
            raise ManifestError(
                f"this {config.model_type} model has {switch} = {getattr(config, switch)} "
                f"in its config.json; only models with {switch} = {plain} can be cut"
            )
    if family.rotary is not None:
        _check_plain_rotary(config)
    return family


def _check_plain_rotary(config: PretrainedConfig) -> None:
    rope = config.rope_parameters
    others = {"rope_type": "default", "partial_rotary_factor": 1.0}
    for key in rope.keys() - {"rope_theta"}:
        if rope[key] != others.get(key):
            raise ManifestError(
                f"this {config.model_type} model has {key} = {rope[key]} in the rope_parameters of its "
                "config.json; only plain rotary tables can be rebuilt at a peer"
            )


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model below the head; the model itself if it has no head."""
    return cast(PreTrainedModel, getattr(model, model.base_model_prefix, model))


def fields_of(family: Family, config: PretrainedConfig) -> dict[str, bool | int | float | str]:
    """A config's numbers by wire name; what it leaves to the library is what the library takes."""
    found: dict[str, Any] = {
        name: getattr(config, attribute, None) for name, attribute in family.fields.items()
    }
    wire_names = {name: wire for wire, name in ACTIVATIONS.items()}
    activation = str(found["activation"])
    found["activation"] = wire_names.get(activation, activation)
    if family.rotary is not None:
        found["rope-base"] = float(found["rope-base"]["rope_theta"])
    for name, value in found.items():
        if value is None and name in _UNSAID:
            found[name] = _UNSAID[name](int(found["width"]), int(found["heads"]))
    return found


# Of width and heads: what a config that says nothing means. A window of 0 is none.
_UNSAID: dict[str, Callable[[int, int], int | bool]] = {
    "inner": lambda width, _: 4 * width,
    "head-width": lambda width, heads: width // heads,
    "key-value-heads": lambda _, heads: heads,
    "window": lambda _, __: 0,
    "joined": lambda _, __: False,
}


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of layers that the base model walks through."""
    layers = base_of(model).get_submodule(family_of(model).layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def replace_layers(model: PreTrainedModel, layers: list[nn.Module]) -> None:
    """Puts another list in the layers' place: the base model calls each with (hidden, mask, ...)."""
    family, config = family_of(model), model.config
    parent, _, name = family.layers.rpartition(".")
    setattr(base_of(model).get_submodule(parent), name, _Layers(layers))
    if getattr(config, "layer_types", None) is not None:
        # Looked up by place, and a low-rank cut adds places; all are of one type.
        config.layer_types = [_ATTENTION] * max(len(layers), config.num_hidden_layers)


class _Layers(nn.ModuleList):
    """A list that is walked whole, also by base models that walk the first num_hidden_layers of it."""

    def __getitem__(self, at: int | slice) -> nn.Module:  # type: ignore[override]
        return self if isinstance(at, slice) else super().__getitem__(at)


_ATTENTION = "full_attention"


def empty_config(
    family: Family, fields: Mapping[str, bool | int | float | str]
) -> PretrainedConfig:
    """A config that decides a layer of this family and nothing else; `fields` were checked before."""
    values: dict[str, object] = {
        attribute: fields[name]
        for name, attribute in family.fields.items()
        if name not in ("activation", "attention", "rope-base", "window")
    }
    values[family.fields["activation"]] = ACTIVATIONS[str(fields["activation"])]
    if "rope-base" in fields:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": fields["rope-base"]}
    if "window" in fields:
        values[family.fields["window"]] = fields["window"] or None
    config = cast(PretrainedConfig, _class(family, "configuration", family.config)(**values))
    setattr(config, family.fields["attention"], fields["attention"])
    return config


def empty_layer(family: Family, config: PretrainedConfig, *, index: int) -> nn.Module:
    """Layer `index` of this family, built on whatever device is current (meta: without memory)."""
    layer = _class(family, "modeling", family.layer)
    return cast(nn.Module, layer(config, layer_idx=index) if family.numbered else layer(config))


def rotary_of(family: Family, config: PretrainedConfig) -> nn.Module | None:
    """What turns positions into tables of angles, (cosines, sines); a module without weights."""
    if family.rotary is None:
        return None
    with torch.device("cpu"):  # tables are numbers that nobody sends
        return cast(nn.Module, _class(family, "modeling", family.rotary)(config))


# Config switches that change what a layer is called with or computes, and the value we support.
_PLAIN: dict[str, object] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
}


def _class(family: Family, kind: str, name: str) -> type:
    module = import_module(f"transformers.models.{family.package}.{kind}_{family.stem}")
    return cast(type, getattr(module, name))
