"""What of a model trains, by mode, and which parts drop out while it does.

features: bottom and trunk are frozen, only the top and head train, and no gradient leaves.
side: as features, and a network at the trusted party, beside the trunk, trains too.
lora: the adapters in the trunk train, and its low-rank cuts; in the other parts all, or where a block has
adapters these alone; the bottom only where asked, the embeddings never.
full: trunk, top and head train; the bottom too, where asked.
What is frozen also runs without dropout, so that it gives the same output for the same text.
"""

from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel

from splitlearn.split.anatomy import base_of, family_of, layers_of
from splitlearn.split.cut import Cut
from splitlearn.split.lora import adapters_only
from splitlearn.split.side import Ladder, SideStage
from splitlearn.split.stage import slots_of
from splitlearn.split.trunk import Trunk
from splitlearn.wire.messages import Mode

__all__ = ["Mode", "freeze", "freeze_trunk", "set_training"]


def freeze(model: PreTrainedModel, *, cut: Cut, mode: Mode, train_bottom: bool) -> None:
    """Sets requires_grad in a whole factored model or in the local part of a split one.

    The same call on both gives the same weights the same standing. A head that is tied to the embeddings
    is theirs: where they are frozen, so is it.
    """
    if mode == "side":
        _freeze_side(model)
        return
    slots = slots_of(model, cut=cut)
    model.requires_grad_(True)
    _freeze_layers(slots.layers.values(), slots.receive, slots.send, mode=mode)
    for name in family_of(model).below:
        base_of(model).get_submodule(name).requires_grad_(mode in _TRAINS_TRUNK and train_bottom)
    for module in _embeddings(model):
        module.requires_grad_(mode == "full" and train_bottom)
    if (upper := family_of(model).upper) is not None:
        # As the layers between two parties: with adapters there, only these train.
        for name in upper.between:
            base_of(model).get_submodule(name).requires_grad_(mode == "full")
    for module in slots.bottom:
        module.requires_grad_(mode in _TRAINS_TRUNK and train_bottom)
    if mode == "lora":
        for module in (*(slots.bottom if train_bottom else ()), *slots.top):
            adapters_only(module)
    _freeze_fixed(model)


def freeze_trunk(trunk: Trunk, *, mode: Mode) -> None:
    """Sets requires_grad in a trunk of its own."""
    _freeze_layers(trunk.layers.values(), trunk.receive, trunk.send, mode=mode)


def set_training(module: nn.Module, *, training: bool) -> None:
    """Training mode for what trains; evaluation mode for every part whose weights are all frozen."""
    module.train(training)
    if training:
        _rest(module)
        if isinstance(module, PreTrainedModel):
            _rest_embeddings(module)


def _rest_embeddings(model: PreTrainedModel) -> None:
    """Some base models have the dropout of their embeddings beside them."""
    children = _embeddings(model)
    if not any(weight.requires_grad for child in children for weight in child.parameters()):
        for child in children:
            child.train(False)
        for name in family_of(model).walkers:  # itself only: what it walks stands as it does
            base_of(model).get_submodule(name).training = False


def _embeddings(model: PreTrainedModel) -> list[nn.Module]:
    """What stands before the layers; some models of a family have not all of it."""
    inside = dict(base_of(model).named_modules())
    return [inside[name] for name in family_of(model).embeddings if name in inside]


_TRAINS_TRUNK = ("lora", "full")


def _freeze_side(model: PreTrainedModel) -> None:
    """All up to the side network stands still, and what restores the last tap; the rest trains."""
    model.requires_grad_(True)
    for module in _embeddings(model):
        module.requires_grad_(False)
    _freeze_fixed(model)
    for module in layers_of(model):
        module.requires_grad_(False)
        if isinstance(module, SideStage | Ladder):
            module.network.requires_grad_(True)
            module.network.restore.requires_grad_(False)
            break


def _freeze_fixed(model: PreTrainedModel) -> None:
    """What no run of the library's own trains either, such as tables of sines."""
    for name in family_of(model).fixed:
        base_of(model).get_submodule(name).requires_grad_(False)


def _freeze_layers(layers: Iterable[nn.Module], *bottlenecks: nn.Module | None, mode: Mode) -> None:
    for module in bottlenecks:
        if module is not None:
            module.requires_grad_(mode in _TRAINS_TRUNK)
    for layer in layers:
        layer.requires_grad_(mode == "full")
        if mode == "lora":
            adapters_only(layer)


def _rest(module: nn.Module) -> None:
    weights = list(module.parameters())
    if weights and not any(weight.requires_grad for weight in weights):
        module.train(False)
        return
    for child in module.children():
        _rest(child)
