"""Which models can be cut, as a table: where their layers are and what decides one of them.

One row a model type. Everything else in this room reads the row and knows no model by name. The
rows describe transformers' own classes; no layer is written anew here. What is not in the table
cannot be cut, and a peer cannot name a class: it names a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

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
    "layers_of",
    "replace_layers",
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
    ModuleList below the base model; fields: wire name -> attribute of the config.
    """

    model_type: str
    package: str
    stem: str
    config: str
    layer: str
    numbered: bool
    layers: str
    fields: Mapping[str, str]
    halves: Halves


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
    for switch, plain in _PLAIN.items():
        if getattr(config, switch, plain) != plain:
            raise ManifestError(
                f"this {config.model_type} model has {switch} = {getattr(config, switch)} "
                f"in its config.json; only encoders with {switch} = {plain} can be cut"
            )
    return family


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model below the head; the model itself if it has no head."""
    return cast(PreTrainedModel, getattr(model, model.base_model_prefix, model))


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of layers that the base model walks through."""
    layers = base_of(model).get_submodule(family_of(model).layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def replace_layers(model: PreTrainedModel, layers: list[nn.Module]) -> None:
    """Puts another list in the layers' place: the base model calls each with (hidden, mask, ...)."""
    parent, _, name = family_of(model).layers.rpartition(".")
    setattr(base_of(model).get_submodule(parent), name, nn.ModuleList(layers))


def empty_config(
    family: Family, fields: Mapping[str, bool | int | float | str]
) -> PretrainedConfig:
    """A config that decides a layer of this family and nothing else; `fields` were checked before."""
    values: dict[str, bool | int | float | str] = {
        attribute: fields[name]
        for name, attribute in family.fields.items()
        if name not in ("activation", "attention")
    }
    values[family.fields["activation"]] = ACTIVATIONS[str(fields["activation"])]
    config = cast(PretrainedConfig, _class(family, "configuration", family.config)(**values))
    setattr(config, family.fields["attention"], fields["attention"])
    return config


def empty_layer(family: Family, config: PretrainedConfig, *, index: int) -> nn.Module:
    """Layer `index` of this family, built on whatever device is current (meta: without memory)."""
    layer = _class(family, "modeling", family.layer)
    return cast(nn.Module, layer(config, layer_idx=index) if family.numbered else layer(config))


# Config switches that change what a layer is called with or computes, and the value we support.
_PLAIN: dict[str, bool | int] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
}


def _class(family: Family, kind: str, name: str) -> type:
    module = import_module(f"transformers.models.{family.package}.{kind}_{family.stem}")
    return cast(type, getattr(module, name))
