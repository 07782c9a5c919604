"""Which models can be cut, as a table: where their layers are and what decides one of them.

One row a model type. Everything else in this room reads the row and knows no model by name. The
rows describe transformers' own classes; `anatomy` finds and builds them. What is not in the table
cannot be cut, and a peer cannot name a class: it names a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "ACTIVATIONS",
    "ATTENTIONS",
    "FAMILIES",
    "Family",
    "Halves",
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

    package: module under transformers.models, and `stem` what its file names end in, both as the type
    where left out; config and layer: class names; layers: dotted name of the ModuleList below the base
    model; fields: wire name -> attribute of the config. numbered: the layer is told its own number.
    halves: None where no cut runs through a block. embeddings: children of the base model that stand
    before its layers. causal: a token sees those before it only, and layers are called by keyword.
    rotary: class that makes tables of angles from positions, for families that have one. plain: config
    switches that change what a layer computes, and the value that is supported. walker: the part of a
    base model that walks the layers, where it has another beside it, and drops out what the embeddings
    give. fixed: weights that never train, a formula's or those of `table`. table: where all layers use one
    table of relative positions, its place in the first one, below the attention that reads it. Layers are
    then handed its bias after their mask, and return (hidden, bias, None). memory: of a decoder that attends
    to an encoder, the part whose output its layers are handed beside their own input; below: what stands
    below such layers whole; between: what of it stands above the encoder's own; own: config switches.
    upper: the row of the decoder where its layers are counted on from those of the encoder and cut with them.
    """

    model_type: str
    config: str
    layer: str
    layers: str
    fields: Mapping[str, str]
    package: str = ""
    stem: str = ""
    numbered: bool = True
    halves: Halves | None = None
    embeddings: tuple[str, ...] = ("embeddings", "embeddings_project")
    causal: bool = False
    rotary: str | None = None
    plain: Mapping[str, object] = field(default_factory=dict)
    walker: str = ""
    memory: str = ""
    below: tuple[str, ...] = ()
    upper: "Family | None" = None
    between: tuple[str, ...] = ()
    own: Mapping[str, object] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    table: str = ""

    @property
    def stack(self) -> str:
        """Whose layers are cut: "encoder", where there is nothing else, "decoder" or "both"."""
        if self.upper is not None:
            return "both"
        return "decoder" if self.memory else "encoder"

    @property
    def walkers(self) -> tuple[str, ...]:
        """Parts of the base model that drop out by themselves what the embeddings below a cut give."""
        names = (self.walker, *self.below, self.upper.walker if self.upper else "")
        return tuple(name for name in names if name)

    def border(self, layers: int) -> int | None:
        """The first layer that is handed a memory, if any is; layers: how many the encoder has."""
        if not self.memory:
            return None
        return layers if self.upper is not None else 0


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


def _bert(model_type: str, name: str, *, package: str = "", stem: str = "") -> Family:
    return Family(
        model_type=model_type,
        package=package,
        stem=stem,
        config=f"{name}Config",
        layer=f"{name}Layer",
        layers="encoder.layer",
        fields=_BERT_FIELDS,
        halves=_BERT_HALVES,
    )


def _llama(
    model_type: str, name: str, *, more: Mapping[str, str], plain: Mapping[str, object]
) -> Family:
    return Family(
        model_type=model_type,
        config=f"{name}Config",
        layer=f"{name}DecoderLayer",
        layers="layers",
        fields=_LLAMA_FIELDS | dict(more),
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
        config=f"{name}Config",
        layer=f"{name}EncoderLayer",
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
        embeddings=("shared", "encoder.embed_tokens", "encoder.embed_positions", *embeddings),
        plain={"encoder_layerdrop": 0.0},
        walker="encoder",
        fixed=fixed,
    )


def _t5(model_type: str, name: str) -> Family:
    """As BART: the encoder's layers. Its one dropout module stands before them and after the last norm."""
    layers, table = "encoder.block", "layer.0.SelfAttention.relative_attention_bias"
    return Family(
        model_type=model_type,
        config=f"{name}Config",
        layer=f"{name}Block",
        layers=layers,
        fields={
            "layers": "num_layers",
            "width": "d_model",
            "heads": "num_heads",
            "head-width": "d_kv",
            "inner": "d_ff",
            "activation": "dense_act_fn",
            "gated": "is_gated_act",
            "dropout": "dropout_rate",
            "norm-epsilon": "layer_norm_epsilon",
            "buckets": "relative_attention_num_buckets",
            "distance": "relative_attention_max_distance",
            "attention": "_attn_implementation",
        },
        embeddings=("shared", "encoder.embed_tokens", "encoder.dropout"),
        walker="encoder",
        fixed=(f"{layers}.0.{table}",),
        table=table,
    )


_BIAS = {"attention-bias": "attention_bias"}


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        _bert("bert", "Bert"),
        _bert("roberta", "Roberta"),
        _bert("xlm-roberta", "XLMRoberta", package="xlm_roberta"),
        _bert("camembert", "Camembert"),
        _bert("electra", "Electra"),
        _bert("ernie", "Ernie"),
        _bert("data2vec-text", "Data2VecText", package="data2vec", stem="data2vec_text"),
        Family(
            model_type="distilbert",
            config="DistilBertConfig",
            layer="TransformerBlock",
            numbered=False,
            layers="transformer.layer",
            fields=_DISTILBERT_FIELDS,
            halves=_DISTILBERT_HALVES,
        ),
        Family(
            model_type="gpt2",
            config="GPT2Config",
            layer="GPT2Block",
            layers="h",
            fields=_GPT2_FIELDS,
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
        _t5("t5", "T5"),
        _t5("mt5", "MT5"),
        _llama("llama", "Llama", more={**_BIAS, "inner-bias": "mlp_bias"}, plain={}),
        _llama("mistral", "Mistral", more={"window": "sliding_window"}, plain={}),
        _llama("qwen2", "Qwen2", more={}, plain={"use_sliding_window": False}),
        _llama("qwen3", "Qwen3", more=_BIAS, plain={"use_sliding_window": False}),
    )
}
