"""What of a model a blueprint may name, as a table: the layers of one stack, of the other, or of both.

A model with one stack has the row that `families` gives it. One with two has three: of its encoder, which is
that row too, of its decoder, and of both, counted on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from splitlearn.split.families import FAMILIES, Family

__all__ = ["TRUNKS", "trunk_name"]

_STACKS = ("encoder", "decoder")


def _above(encoder: Family, *, layers: str, own: Mapping[str, str], each: Sequence[str]) -> Family:
    """The decoder's layers of a model that has an encoder, which then stays below the lower cut, whole.

    own: its numbers, where the encoder has others; each: what stands before the layers of both.
    """
    return replace(
        encoder,
        layers=layers,
        fields=dict(encoder.fields) | dict(own),
        embeddings=("shared", *(f"{part}.{child}" for part in _STACKS for child in each)),
        walker="decoder",
        memory="encoder",
        below=("encoder",),
    )


def _bart_decoder(model_type: str, name: str, *, norms: tuple[str, ...]) -> Family:
    own = {"layers": "layers", "heads": "attention_heads", "inner": "ffn_dim"}
    own = {number: f"decoder_{name}" for number, name in own.items()}
    each = ("embed_tokens", "embed_positions", *norms)
    above = _above(FAMILIES[model_type], layers="decoder.layers", own=own, each=each)
    # A layer that is dropped may be the one that stands for the peer.
    plain = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    return replace(above, layer=f"{name}DecoderLayer", plain=plain)


def _t5_decoder(model_type: str) -> Family:
    """Its layers are of the encoder's class, told by a switch; its table is its own, and looks back only."""
    encoder, layers, own = FAMILIES[model_type], "decoder.block", {"layers": "num_decoder_layers"}
    above = _above(encoder, layers=layers, own=own, each=("embed_tokens", "dropout"))
    return replace(
        above,
        fixed=(f"{layers}.0.{encoder.table}",),
        between=("encoder.final_layer_norm",),
        own={"is_decoder": True},
    )


def _both(decoder: Family) -> Family:
    """The layers of the encoder, and counted on from there those of the decoder."""
    encoder = FAMILIES[decoder.model_type]
    own = {f"decoder-{n}": at for n, at in decoder.fields.items() if at != encoder.fields[n]}
    return replace(
        encoder,
        fields=dict(encoder.fields) | own,
        embeddings=decoder.embeddings,
        plain=decoder.plain,
        memory=decoder.memory,
        upper=decoder,
        fixed=tuple(dict.fromkeys((*encoder.fixed, *decoder.fixed))),
    )


def trunk_name(model_type: str, *, stack: str = "encoder") -> str:
    """The name of a row of TRUNKS: which layers of a model of this type are cut."""
    return model_type if stack == "encoder" else f"{model_type}-{stack}"


_DECODERS = (
    _bart_decoder("bart", "Bart", norms=("layernorm_embedding",)),
    _bart_decoder("marian", "Marian", norms=()),
    _t5_decoder("t5"),
    _t5_decoder("mt5"),
)
# What a blueprint may name. A model with two stacks of layers has three rows.
TRUNKS: dict[str, Family] = FAMILIES | {
    trunk_name(family.model_type, stack=family.stack): family
    for family in (*_DECODERS, *map(_both, _DECODERS))
}
