"""A model in parts: the local one, ordinary but for its remote stages, and the trunk, whole or shared.

The local part is the transformers model itself, so embeddings, heads and losses are the library's;
only its list of layers is shorter by the trunk, whose place a RemoteStage takes, or one for each
party of a chain. No sending and no receiving happens here.
"""

# B batch, T padded length, D width (R where the cut is narrow)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor, nn
from transformers import PreTrainedModel

from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import (
    border_of,
    config_at,
    depth_of,
    family_of,
    layers_of,
    replace_layers,
    table_of,
)
from splitlearn.split.bottleneck import PcaBasis, pca_pair, sft_pair
from splitlearn.split.crossing import hand_over
from splitlearn.split.cut import Bottleneck, Cut, fault
from splitlearn.split.families import Family, Halves
from splitlearn.split.memory import own_memory
from splitlearn.split.stacks import parts_of
from splitlearn.split.trunk import Trunk

__all__ = [
    "RemoteStage",
    "Slots",
    "factor",
    "lay_out",
    "remote_stage",
    "remote_stages",
    "slots_of",
    "split",
    "split_chain",
    "uncuttable",
]


class RemoteStage(nn.Module):
    """Stands where the trunk's layers were. `exchange` takes the bottom's output to the trunk's.

    The engine sets `exchange` before the model runs. A copy of the stage comes without it. span: how many
    layers it stands for.
    """

    def __init__(self, span: int = 1) -> None:
        super().__init__()
        self.span = span
        self.exchange: Callable[[Tensor], Tensor] = _not_connected

    def forward(self, h_BTD: Tensor, *_: object, **__: object) -> Tensor:
        return self.exchange(h_BTD)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "exchange": _not_connected}


@dataclass(frozen=True)
class Slots:
    """A model's layers and bottlenecks by owner. `layers` are the trunk's, by number."""

    bottom: tuple[nn.Module, ...]
    receive: nn.Module | None
    layers: Mapping[int, nn.Module]
    send: nn.Module | None
    top: tuple[nn.Module, ...]

    @property
    def trunk(self) -> tuple[nn.Module, ...]:
        inner = (self.receive, *self.layers.values(), self.send)
        return tuple(module for module in inner if module is not None)


def factor(model: PreTrainedModel, *, cut: Cut, bases: Mapping[str, PcaBasis]) -> PreTrainedModel:
    """The model with its bottlenecks in place, whole, in one process. It is changed, not copied.

    bases: "lower" and "upper", for those cuts whose method is "pca". This is the model that a split
    run trains; without a bottleneck it is the model as it came. ManifestError if the cut does not
    fit or a basis is missing.
    """
    config, family = model.config, family_of(model)
    found = fault(cut, layers=depth_of(model), width=config.hidden_size) or uncuttable(
        cut, family=family
    )
    if found is not None:
        raise ManifestError(f"the cut does not fit this model: {found}")
    for where, bottleneck in (("lower", cut.lower), ("upper", cut.upper)):
        if bottleneck.method == "pca" and where not in bases:
            raise ManifestError(
                f"the {where} cut has method 'pca' and no public text to fit it to; name some"
            )
    slots = lay_out(
        list(layers_of(model)), cut=cut, halves=family.halves, width=config.hidden_size, bases=bases
    )
    replace_layers(model, [*slots.bottom, *slots.trunk, *slots.top])
    own_memory(model)
    return model


def uncuttable(cut: Cut, *, family: Family) -> str | None:
    """What a family has no parts for, if the cut asks for it."""
    if family.memory and cut.narrow:
        return "what a decoder's layers are sent has rows of a memory, which no cut narrows; choose 'none'"
    if family.halves is None and "sft" in (cut.lower.method, cut.upper.method):
        return (
            f"a cut of method 'sft' runs through a block, and {family.model_type} has no blocks for it; "
            "choose 'pca' or 'none'"
        )
    return None


def lay_out(
    layers: Sequence[nn.Module],
    *,
    cut: Cut,
    halves: Halves | None,
    width: int,
    bases: Mapping[str, PcaBasis],
) -> Slots:
    """All of a model's layers, with the cut's bottlenecks among them. Layers are moved, not copied.

    A "pca" pair whose basis is missing comes without weights (on the meta device).
    """

    def pair(
        bottleneck: Bottleneck, where: str, block: nn.Module
    ) -> tuple[nn.Module | None, nn.Module | None]:
        if bottleneck.method == "none":
            return None, None
        if bottleneck.method == "pca":
            return pca_pair(bases.get(where), width=width, rank=bottleneck.rank)
        assert halves is not None, "a cut through a block was refused where there are no halves"
        return sft_pair(block, halves=halves, rank=bottleneck.rank)

    lower_send, lower_receive = pair(cut.lower, "lower", layers[cut.first - 1])
    upper_send, upper_receive = pair(cut.upper, "upper", layers[cut.last - 1])
    bottom = layers[: cut.first - (cut.lower.method == "sft")]
    return Slots(
        bottom=tuple(bottom) if lower_send is None else (*bottom, lower_send),
        receive=lower_receive,
        layers={index: layers[index] for index in cut.whole},
        send=upper_send,
        top=tuple(layers[cut.last :])
        if upper_receive is None
        else (upper_receive, *layers[cut.last :]),
    )


def slots_of(model: PreTrainedModel, *, cut: Cut) -> Slots:
    """The slots of a whole factored model, or of a local one (whose trunk is remote stages only)."""
    layers = list(layers_of(model))
    begin = cut.first - (cut.lower.method == "sft") + (cut.lower.method != "none")
    top = depth_of(model) - cut.last + (cut.upper.method != "none")
    bottom, trunk, rest = (
        layers[:begin],
        layers[begin : len(layers) - top],
        layers[len(layers) - top :],
    )
    if any(isinstance(module, RemoteStage) for module in trunk):
        spans = [getattr(module, "span", 1) for module in trunk]
        numbers = accumulate(spans[:-1], initial=cut.first)
        return Slots(tuple(bottom), None, dict(zip(numbers, trunk, strict=True)), None, tuple(rest))
    receive = trunk.pop(0) if cut.lower.method != "none" else None
    send = trunk.pop() if cut.upper.method != "none" else None
    assert len(trunk) == len(cut.whole), "the model was not factored with this cut"
    return Slots(
        tuple(bottom), receive, dict(zip(cut.whole, trunk, strict=True)), send, tuple(rest)
    )


def split(model: PreTrainedModel, *, cut: Cut) -> tuple[PreTrainedModel, Trunk]:
    """A factored model taken apart: the local model, and the trunk that its remote stage stands for.

    Nothing is copied: the model given becomes the local one and its trunk is moved out.
    """
    local, (trunk,) = split_chain(model, cut=cut, starts=())
    return local, trunk


def split_chain(
    model: PreTrainedModel, *, cut: Cut, starts: Sequence[int], direct: bool = False
) -> tuple[PreTrainedModel, tuple[Trunk, ...]]:
    """As `split`, with the trunk shared out as `parts_of` says, a remote stage for each part.

    direct: one stage for all parts, which send to one another.
    """
    slots, family = slots_of(model, cut=cut), family_of(model)
    parts = parts_of(model, cut=cut, starts=starts)
    stages, at = list[nn.Module](), cut.first
    for part in (cut,) if direct else parts:
        stages += [slots.layers[index] for index in range(at, part.first)]  # between two stacks
        stages.append(RemoteStage(part.last - part.first))
        at = part.last
    replace_layers(model, [*slots.bottom, *stages, *slots.top])
    hand_over(model)
    border, trunks = border_of(model.config), list[Trunk]()
    for part in parts:
        config = config_at(model.config, first=part.first)
        # Of its own stack: where two are counted on, the upper one begins at the border.
        first = slots.layers[border] if border and border <= part.first else slots.bottom[0]
        trunk = Trunk(
            config,
            layers={index: slots.layers[index] for index in part.whole},
            receive=slots.receive if part is parts[0] else None,
            send=slots.send if part is parts[-1] else None,
            table=table_of(family, config, first=first),
        )
        trunks.append(trunk.train(model.training))
    return model, tuple(trunks)


def remote_stage(local: PreTrainedModel) -> RemoteStage:
    """The one remote stage in a local model: where the engine sets `exchange`."""
    (stage,) = remote_stages(local)
    return stage


def remote_stages(local: PreTrainedModel) -> tuple[RemoteStage, ...]:
    """All of them, in the order of the layers that they stand for."""
    return tuple(layer for layer in layers_of(local) if isinstance(layer, RemoteStage))


def _not_connected(_: Tensor) -> Tensor:
    raise AssertionError("a remote stage ran before the engine set its exchange")
