"""A model's parts, found by the row of its family; and empty ones, built from a peer's checked numbers.

Layers, tables of angles and configs are transformers' own classes; none is written anew here.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from splitlearn.errors import ManifestError
from splitlearn.split.families import ACTIVATIONS, Family
from splitlearn.split.trunks import TRUNKS, trunk_name

__all__ = [
    "base_of",
    "border_of",
    "config_at",
    "cut_stack",
    "depth_of",
    "empty_config",
    "empty_layer",
    "family_of",
    "fields_of",
    "hidden_of",
    "layers_of",
    "replace_layers",
    "rotary_of",
    "stack_of",
    "table_of",
    "trunk_of",
    "walked_from",
]


def family_of(model: PreTrainedModel) -> Family:
    """The model's row. ManifestError if it has none, or if its config asks for what no row does."""
    config = model.config
    stack = stack_of(config)
    family = TRUNKS.get(trunk_of(config))
    if family is None:
        known = {
            row.model_type
            for name, row in TRUNKS.items()
            if trunk_name(row.model_type, stack=stack) == name
        }
        where = "" if stack == "encoder" else f" in its {stack}"
        raise ManifestError(
            f"a model of type {config.model_type!r} cannot be cut{where}; "
            f"choose one of {', '.join(sorted(known))}"
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


def stack_of(config: PretrainedConfig) -> str:
    """Which stack of layers is cut, where a model has an encoder and a decoder: `cut_stack` set it."""
    return str(getattr(config, "cut_stack", "encoder"))


def trunk_of(config: PretrainedConfig) -> str:
    """The name of the config's row."""
    return trunk_name(config.model_type, stack=stack_of(config))


def cut_stack(model: PreTrainedModel, stack: str) -> None:
    """Cut the model in that stack from now on: "encoder", as without a word, "decoder" or "both"."""
    model.config.cut_stack = stack


def depth_of(model: PreTrainedModel) -> int:
    """Layers of the whole model, of the stack that is cut."""
    fields = family_of(model).fields
    names = (fields[name] for name in ("layers", "decoder-layers") if name in fields)
    return sum(int(getattr(model.config, name)) for name in names)


def border_of(config: PretrainedConfig) -> int | None:
    """The first layer of a decoder that is handed a memory, by its number; None where there is none."""
    family = TRUNKS[trunk_of(config)]
    return family.border(int(getattr(config, family.fields["layers"])))


def config_at(config: PretrainedConfig, *, first: int) -> PretrainedConfig:
    """What layers from `first` on are made with: the config, or a copy where their decoder has switches."""
    family, border = TRUNKS[trunk_of(config)], border_of(config)
    stack = family.upper if family.upper and border is not None and first >= border else family
    if not stack.own:
        return config
    own = copy.deepcopy(config)
    for switch, value in stack.own.items():
        setattr(own, switch, value)
    return own


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
    """The list of layers that the base model walks through; of two stacks a new one, of both."""
    family = family_of(model)
    layers = base_of(model).get_submodule(family.layers)
    assert isinstance(layers, nn.ModuleList)
    if family.upper is None:
        return layers
    upper = base_of(model).get_submodule(family.upper.layers)
    assert isinstance(upper, nn.ModuleList)
    return nn.ModuleList([*layers, *upper])


def replace_layers(model: PreTrainedModel, layers: list[nn.Module]) -> None:
    """Puts another list in the layers' place: the base model calls each with (hidden, mask, ...).

    What is no layer of the family's own returns the hidden state alone. Where layers hand something on,
    it does too from now on.
    """
    family, config = family_of(model), model.config
    for module in layers if family.table else ():
        hooks = module._forward_hooks.values()  # noqa: SLF001 - nobody else can say
        if (
            not isinstance(module, _class(family, "modeling", family.layer))
            and _hand_on not in hooks
        ):
            module.register_forward_hook(_hand_on)
    if family.upper is not None:
        below, at, border = list[nn.Module](), 0, border_of(config) or 0
        while at < border:
            below.append(layers[len(below)])
            at += getattr(below[-1], "span", 1)
        _put_layers(model, family.upper.layers, layers[len(below) :])
        layers = below
    _put_layers(model, family.layers, layers)
    if getattr(config, "layer_types", None) is not None:
        # Looked up by place, and a low-rank cut adds places; all are of one type.
        config.layer_types = [_ATTENTION] * max(len(layers), config.num_hidden_layers)


def _put_layers(model: PreTrainedModel, path: str, layers: list[nn.Module]) -> None:
    parent, _, name = path.rpartition(".")
    setattr(base_of(model).get_submodule(parent), name, _Layers(layers))


def _hand_on(_: nn.Module, given: tuple[object, ...], output: object) -> object:
    """As a layer does that was called with (hidden, mask, bias)."""
    return output if isinstance(output, tuple) else (output, given[2], None)


def hidden_of(output: object) -> Tensor:
    """The hidden state in what a layer returned, whatever it hands on beside."""
    found = output[0] if isinstance(output, tuple) else output
    assert isinstance(found, Tensor), "a layer of our families returns the hidden state first"
    return found


@contextmanager
def walked_from(model: PreTrainedModel, first: int) -> Iterator[None]:
    """A forward that begins meanwhile leaves out the layers before `first`, of a list put in by us."""
    layers = layers_of(model)
    assert isinstance(layers, _Layers)
    layers.first = first
    try:
        yield
    finally:
        layers.first = 0


class _Layers(nn.ModuleList):
    """A list that is walked whole, also by base models that walk the first num_hidden_layers of it.

    first: where a walk begins, if not at the first layer.
    """

    first = 0

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(list(super().__iter__())[self.first :])

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
    if family.memory:
        config.cut_stack = family.stack
    return config


def empty_layer(family: Family, config: PretrainedConfig, *, index: int) -> nn.Module:
    """Layer `index` of this family, built on whatever device is current (meta: without memory).

    config: as `config_at` gives it for this layer.
    """
    border = border_of(config)
    if family.upper is not None and border is not None and index >= border:
        return empty_layer(family.upper, config, index=index - border)
    layer = _class(family, "modeling", family.layer)
    return cast(nn.Module, layer(config, layer_idx=index) if family.numbered else layer(config))


def rotary_of(family: Family, config: PretrainedConfig) -> nn.Module | None:
    """What turns positions into tables of angles, (cosines, sines); a module without weights."""
    if family.rotary is None:
        return None
    with torch.device("cpu"):  # tables are numbers that nobody sends
        return cast(nn.Module, _class(family, "modeling", family.rotary)(config))


def table_of(
    family: Family, config: PretrainedConfig, *, first: nn.Module | None = None
) -> nn.Module | None:
    """What says a width's bias of relative positions, (1, heads, T, T), by the library's `compute_bias`.

    An attention with a table and nothing else, which never trains; None for families that have none.
    config: as `config_at` gives it: of a decoder, a bias tells apart only what comes before a token.
    first: the stack's first layer, whose table is copied; without it the table has no weights (meta).
    """
    if not family.table:
        return None
    within, _, name = family.table.rpartition(".")
    layer = _class(family, "modeling", family.layer)
    with torch.device("meta"):
        whole = layer(config, has_relative_attention_bias=True, layer_idx=0)
    attention = cast(nn.Module, whole.get_submodule(within))
    for other in [child for child, _ in attention.named_children() if child != name]:
        delattr(attention, other)
    if first is not None:
        setattr(attention, name, copy.deepcopy(first.get_submodule(family.table)))
    return attention.requires_grad_(False)


# Config switches that change what a layer is called with or computes, and the value we support.
_PLAIN: dict[str, object] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
}


def _class(family: Family, kind: str, name: str) -> type:
    package = family.package or family.model_type
    stem = family.stem or package
    module = import_module(f"transformers.models.{package}.{kind}_{stem}")
    return cast(type, getattr(module, name))
