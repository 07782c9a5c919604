"""What of a model trains, by mode, and which parts drop out while it does.

features: bottom and trunk are frozen, only the top and head train, and no gradient leaves.
full: trunk, top and head train; the bottom too, where asked.
What is frozen also runs without dropout, so that it gives the same output for the same text.
"""

from typing import Literal

from torch import nn
from transformers import PreTrainedModel

from splitlearn.split.cut import Cut
from splitlearn.split.families import base_of, family_of
from splitlearn.split.stage import Trunk, slots_of

__all__ = ["Mode", "freeze", "freeze_trunk", "set_training"]

Mode = Literal["features", "full"]


def freeze(model: PreTrainedModel, *, cut: Cut, mode: Mode, train_bottom: bool) -> None:
    """Sets requires_grad in a whole factored model or in the local part of a split one.

    The same call on both gives the same weights the same standing. A head that is tied to the embeddings
    is theirs: where they are frozen, so is it.
    """
    slots = slots_of(model, cut=cut)
    model.requires_grad_(True)
    for module in slots.trunk:
        module.requires_grad_(mode == "full")
    for module in (*_embeddings(model), *slots.bottom):
        module.requires_grad_(mode == "full" and train_bottom)
    for name in family_of(model).fixed:
        base_of(model).get_submodule(name).requires_grad_(False)


def freeze_trunk(trunk: Trunk, *, mode: Mode) -> None:
    """Sets requires_grad in a trunk of its own."""
    trunk.requires_grad_(mode == "full")


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
        if walker := family_of(model).walker:  # itself only: what it walks stands as it does
            base_of(model).get_submodule(walker).training = False


def _embeddings(model: PreTrainedModel) -> list[nn.Module]:
    """What stands before the layers; some models of a family have not all of it."""
    inside = dict(base_of(model).named_modules())
    return [inside[name] for name in family_of(model).embeddings if name in inside]


def _rest(module: nn.Module) -> None:
    weights = list(module.parameters())
    if weights and not any(weight.requires_grad for weight in weights):
        module.train(False)
        return
    for child in module.children():
        _rest(child)
