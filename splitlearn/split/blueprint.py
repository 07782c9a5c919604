"""What a peer needs to know to build a trunk, and building one from what a peer said.

A blueprint is a row of the table of families and the numbers of a layer. Every number from a peer is
checked against bounds before anything is built, and what is built is a shape without memory: weights
take memory only as they arrive. Embeddings, top and head are not in a blueprint at all.
"""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import (
    config_at,
    empty_config,
    empty_layer,
    family_of,
    fields_of,
    table_of,
    trunk_of,
)
from splitlearn.split.cut import Cut, cut_of, fault
from splitlearn.split.families import ACTIVATIONS, ATTENTIONS, Family
from splitlearn.split.stage import lay_out, uncuttable
from splitlearn.split.trunk import Trunk
from splitlearn.split.trunks import TRUNKS
from splitlearn.wire.messages import CutSpec, TrunkModel

__all__ = ["build_trunk", "trunk_model"]

# Far above the largest encoder published (XLM-R XXL: 48 layers, 32 heads, width 4,096, inner 16,384).
MAX_LAYERS = 512
MAX_WIDTH = 16_384
MAX_HEADS = 1_024
MAX_INNER = 65_536
MAX_HEAD_WIDTH = 1_024
MAX_WINDOW = 65_536
MAX_BUCKETS = 1_024
MAX_DISTANCE = 2**20
# 16 billion weights in float32. They take memory only as they arrive; this bounds the sum.
MAX_TRUNK_BYTES = 64 * 2**30


def trunk_model(model: PreTrainedModel) -> TrunkModel:
    """The blueprint of a model of ours. ManifestError if it is of a kind that cannot be offered."""
    family = family_of(model)
    if model.dtype != torch.float32:
        raise ManifestError(
            f"the model's weights are {model.dtype}; load it in float32 to split it"
        )
    fields = fields_of(family, model.config)
    found = _fault(family, fields)
    if found is not None:
        raise ManifestError(f"this {family.model_type} model cannot be split: {found}")
    return TrunkModel(model_type=trunk_of(model.config), fields=fields)


def build_trunk(model: TrunkModel, *, cut: CutSpec) -> Trunk:
    """The trunk that a peer's blueprint and cut describe, without weights (on the meta device).

    `weights.load_weights` fills it. WireError if the blueprint names no family of ours, or a number
    in it is missing, unknown, ill-typed or out of bounds.
    """
    family = TRUNKS.get(model.model_type)
    if family is None:
        raise WireError(
            f"the peer offers a model of type {model.model_type!r}; this version knows "
            f"{', '.join(sorted(TRUNKS))}"
        )
    place = cut_of(cut)
    found = (
        _fault(family, model.fields)
        or _misplaced(place, fields=model.fields, family=family)
        or uncuttable(place, family=family)
    )
    if found is not None:
        raise WireError(f"the peer offers a {model.model_type} trunk that cannot be: {found}")
    config = config_at(empty_config(family, model.fields), first=place.first)
    layers = range(_depth(model.fields))
    needed = {place.first - 1, place.last - 1, *place.whole}
    with torch.device("meta"):
        blocks = [
            empty_layer(family, config, index=index) if index in needed else torch.nn.Identity()
            for index in layers
        ]
    slots = lay_out(blocks, cut=place, halves=family.halves, width=config.hidden_size, bases={})
    return Trunk(
        config,
        layers=slots.layers,
        receive=slots.receive,
        send=slots.send,
        table=table_of(family, config),
    )


# From and to. A window of 0 is none; one token has at most as many before it as a message has tokens.
_WHOLE_NUMBERS = {
    "layers": (1, MAX_LAYERS),
    "width": (1, MAX_WIDTH),
    "heads": (1, MAX_HEADS),
    "key-value-heads": (1, MAX_HEADS),
    "head-width": (2, MAX_HEAD_WIDTH),
    "inner": (1, MAX_INNER),
    "window": (0, MAX_WINDOW),
    "decoder-layers": (1, MAX_LAYERS),
    "decoder-heads": (1, MAX_HEADS),
    "decoder-inner": (1, MAX_INNER),
    "buckets": (4, MAX_BUCKETS),
    "distance": (2, MAX_DISTANCE),
}
_SWITCHES = ("attention-bias", "inner-bias", "joined", "gated")
# A dropout of 1 divides by zero; an epsilon of 0 does so for a row of equal numbers.
_REAL_NUMBERS = {
    "dropout": (0.0, 0.99),
    "attention-dropout": (0.0, 0.99),
    "inner-dropout": (0.0, 0.99),
    "norm-epsilon": (1e-30, 0.1),
    "rope-base": (1.0, 1e9),
}
_NAMES: dict[str, tuple[str, ...]] = {"activation": tuple(ACTIVATIONS), "attention": ATTENTIONS}


def _fault(family: Family, fields: Mapping[str, object]) -> str | None:
    """What is wrong with a blueprint's fields, if anything; the first fault in the table's order."""
    if fields.keys() != family.fields.keys():
        return f"its fields are {sorted(fields)}, expected {sorted(family.fields)}"
    for name in family.fields:
        found = _field_fault(name, fields[name])
        if found is not None:
            return found
    if "buckets" in fields:
        return _table_fault(fields, looks_back=bool(family.memory))
    width, heads = _whole(fields, "width"), _whole(fields, "heads")
    others = _whole(fields, "decoder-heads") if "decoder-heads" in fields else heads
    for count in (heads, others):
        if width % count != 0:
            return f"{count} heads do not divide a width of {width}"
    if "key-value-heads" in fields:
        shared, each = _whole(fields, "key-value-heads"), _whole(fields, "head-width")
        if heads % shared != 0:
            return f"{shared} key-value-heads do not divide {heads} heads"
        if each % 2 != 0 or heads * each > MAX_INNER:
            return (
                f"head-width is {each}, expected an even number, at most {MAX_INNER // heads} here"
            )
    return None


def _table_fault(fields: Mapping[str, object], *, looks_back: bool) -> str | None:
    """What is wrong with heads that are as wide as they say, and with a table of relative positions.

    A quarter of the buckets is for single distances, or half of a decoder's, which has none for what comes
    after; the rest are by the logarithm of what is farther. looks_back: whether a decoder's is among them.
    """
    heads, each = _whole(fields, "heads"), _whole(fields, "head-width")
    if heads * each > MAX_INNER:
        return f"head-width is {each}, expected at most {MAX_INNER // heads} with {heads} heads"
    buckets, distance = _whole(fields, "buckets"), _whole(fields, "distance")
    part, single = ("half", buckets // 2) if looks_back else ("a quarter", buckets // 4)
    if distance <= single:
        return f"distance is {distance}, expected more than {part} of {buckets} buckets"
    return None


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    assert isinstance(value, int)
    return value


def _field_fault(name: str, value: object) -> str | None:
    if name in _NAMES:
        if value not in _NAMES[name]:
            return f"{name} is {value!r}, expected one of {', '.join(_NAMES[name])}"
        return None
    if name in _WHOLE_NUMBERS:
        least, most = _WHOLE_NUMBERS[name]
        if type(value) is not int or not least <= value <= most:
            return f"{name} is {value!r}, expected a whole number from {least} to {most}"
        return None
    if name in _SWITCHES:
        return None if isinstance(value, bool) else f"{name} is {value!r}, expected true or false"
    low, high = _REAL_NUMBERS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return f"{name} is {value!r}, expected a number from {low} to {high}"
    return None


def _misplaced(
    place: Cut, *, fields: Mapping[str, bool | int | float | str], family: Family
) -> str | None:
    width, inner = int(fields["width"]), int(fields["inner"])
    attentions = 2 if family.memory else 1
    if family.upper is not None:
        border, inner = int(fields["layers"]), max(inner, int(fields.get("decoder-inner", 0)))
        if place.first <= border < place.last:
            return (
                f"layers [{place.first}, {place.last}) are of an encoder and of its decoder, which begins at "
                f"{border}; a party has those of one, and the decoder's first stays below it"
            )
    # Queries, keys, values and what follows them; a second matrix into the inner width where one gates.
    across = int(fields["heads"]) * int(fields["head-width"]) if "head-width" in fields else width
    inward = 3 if fields.get("gated", "head-width" in fields) else 2
    size = (
        4
        * (place.last - place.first + 2)
        * (4 * attentions * width * across + inward * width * inner)
    )
    if size > MAX_TRUNK_BYTES:
        return f"its weights would take {size} bytes, more than {MAX_TRUNK_BYTES}"
    return fault(place, layers=_depth(fields), width=width)


def _depth(fields: Mapping[str, bool | int | float | str]) -> int:
    """Layers of the whole model, of both stacks where both are cut."""
    return int(fields["layers"]) + int(fields.get("decoder-layers", 0))
