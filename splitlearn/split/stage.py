"""A model in parts: the local one, ordinary but for its remote stages, and the trunk, whole or shared.

The local part is the transformers model itself, so embeddings, heads and losses are the library's;
only its list of layers is shorter by the trunk, whose place a RemoteStage takes, or one for each
party of a chain. A trunk holds layers and nothing else: never embeddings, top or head. Masks are
rebuilt at the trunk from lengths by the function that the base model uses. No sending and no
receiving happens here.
"""

# B batch, T padded length, D width (R where the cut is narrow)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import (
    border_of,
    depth_of,
    family_of,
    hidden_of,
    layers_of,
    replace_layers,
    rotary_of,
    table_of,
    trunk_of,
)
from splitlearn.split.bottleneck import PcaBasis, pca_pair, sft_pair
from splitlearn.split.cache import TrunkCache
from splitlearn.split.crossing import Beside, hand_over, run_crossed
from splitlearn.split.cut import Bottleneck, Cut, fault
from splitlearn.split.families import TRUNKS, Family, Halves
from splitlearn.split.memory import own_memory
from splitlearn.split.rows import mask_of, positions_of
from splitlearn.split.stacks import parts_of

__all__ = [
    "RemoteStage",
    "Slots",
    "Trunk",
    "factor",
    "lay_out",
    "remote_stage",
    "remote_stages",
    "slots_of",
    "split",
    "split_chain",
    "uncuttable",
]


# 64 texts of 1,024 tokens over 64 heads, 16 GiB: a bias makes masks as large as the scores of attention.
MAX_SCORES = 2**32


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


class Trunk(nn.Module):
    """Layers [first, last), with the receiving module before and the sending one after, if any.

    Layers keep the numbers they have in the whole model, so weight names read "layers.2. ...". table: as
    `table_of` makes it, for families that have one; its weights are the first layer's, which is elsewhere.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        layers: Mapping[int, nn.Module],
        receive: nn.Module | None,
        send: nn.Module | None,
        table: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.table = table
        self.receive = receive
        self.layers = nn.ModuleDict({str(index): layer for index, layer in layers.items()})
        self.send = send
        family = TRUNKS[trunk_of(config)]
        border = border_of(config)
        self._causal = family.causal
        self._crossed = border is not None and min(layers, default=0) >= border
        # Not among the modules: it has no weights, and nothing of it is kept or sent.
        self._rotary = [rotary_of(family, config)]

    @property
    def joined(self) -> bool:
        """Whether several texts lie in one row, as `rows.positions_of` lays them."""
        return bool(getattr(self.config, "joined_texts", False))

    @property
    def writes(self) -> bool:
        """Whether its model can be asked for a text: it is a decoder, or has one above."""
        return self._causal or bool(TRUNKS[trunk_of(self.config)].walker)

    @property
    def causal(self) -> bool:
        """Whether a token sees those before it only, so that a text can be gone on with."""
        return self._causal

    @property
    def crossed(self) -> bool:
        """Whether layers attend to a memory, too, which is a decoder's that has an encoder."""
        return self._crossed

    def forward(
        self,
        h_BTD: Tensor,
        *,
        lengths: Sequence[int],
        cache: TrunkCache | None = None,
        beside: Beside | None = None,
    ) -> Tensor:
        """(B, T, entrance) to (B, T, exit); `lengths` are the real tokens of each example.

        cache: of a causal trunk, what it has of these texts already; h_BTD is of the tokens after.
        beside: of a crossed trunk, its memory.
        """
        assert (beside is not None) is self._crossed, (
            "a memory for a decoder's trunk, and for no other"
        )
        if beside is not None:
            return run_crossed(self.in_order(), self.config, h_BTD, beside=beside)
        if cache is not None:
            return self._go_on(h_BTD, cache=cache)
        if self._causal:
            return self._forward_causal(h_BTD, lengths=lengths)
        width = h_BTD.shape[1]
        mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=h_BTD,
            attention_mask=mask_of(lengths, width=width).to(h_BTD.device),
        )
        given = (mask,) if self.table is None else (mask, self._bias(h_BTD))
        for module in self.in_order():
            h_BTD = hidden_of(module(h_BTD, *given))
        return h_BTD

    def _bias(self, h_BTD: Tensor) -> Tensor:
        """What the first layer adds to the scores of attention and hands on to all others, (1, H, T, T).

        WireError where it would be too large with a batch's mask in it, as attention takes it.
        """
        assert self.table is not None
        texts, width = h_BTD.shape[:2]
        scores = texts * self.config.num_attention_heads * width**2
        if scores > MAX_SCORES:
            raise WireError(
                f"the peer sent {texts} texts padded to {width} tokens, which have {scores} pairs of tokens "
                f"over all heads, more than {MAX_SCORES}; use smaller batches"
            )
        return cast(Callable[[int, int], Tensor], self.table.compute_bias)(width, width)

    def _forward_causal(self, h_BTD: Tensor, *, lengths: Sequence[int]) -> Tensor:
        """What the base model gives its layers, from lengths: mask, positions, tables of angles."""
        width = h_BTD.shape[1]
        positions_BT = (
            positions_of(lengths, width=width) if self.joined else torch.arange(width)[None]
        )
        mask_BT = None if self.joined else mask_of(lengths, width=width)
        return self._run(h_BTD, mask_BT=mask_BT, positions_BT=positions_BT, cache=None)

    def _go_on(self, h_BTD: Tensor, *, cache: TrunkCache) -> Tensor:
        """The same for tokens after those in the cache, of texts without padding."""
        assert self._causal, "no text of an encoder is gone on with"
        texts, width = h_BTD.shape[:2]
        had = cache.get_seq_length()
        positions_BT = torch.arange(had, had + width)[None]
        mask_BT = torch.ones((texts, had + width), dtype=torch.bool)
        return self._run(h_BTD, mask_BT=mask_BT, positions_BT=positions_BT, cache=cache)

    def _run(
        self,
        h_BTD: Tensor,
        *,
        mask_BT: Tensor | None,
        positions_BT: Tensor,
        cache: TrunkCache | None,
    ) -> Tensor:
        window = getattr(self.config, "sliding_window", None)
        make = create_causal_mask if window is None else create_sliding_window_causal_mask
        positions_BT = positions_BT.to(h_BTD.device)
        mask = make(
            config=self.config,
            inputs_embeds=h_BTD,
            attention_mask=None if mask_BT is None else mask_BT.to(h_BTD.device),
            position_ids=positions_BT,
            cache=cache,
        )
        given: dict[str, object] = {"attention_mask": mask, "position_ids": positions_BT}
        if cache is not None:
            given["cache"] = cache
        (rotary,) = self._rotary
        if rotary is not None:
            # Not among the modules, so that the trunk's move left it behind.
            rotary.to(h_BTD.device)
            given["position_embeddings"] = rotary(h_BTD, position_ids=positions_BT)
        for module in self.in_order():
            h_BTD = module(h_BTD, **given)
        return h_BTD

    def empty_cache(self) -> TrunkCache:
        """For texts that begin."""
        return TrunkCache(self.config, first=min(map(int, self.layers), default=0))

    def in_order(self) -> list[nn.Module]:
        """What the trunk runs, first to last."""
        modules = [self.receive, *self.layers.values(), self.send]
        return [module for module in modules if module is not None]


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
    trunks = [
        Trunk(
            model.config,
            layers={index: slots.layers[index] for index in part.whole},
            receive=slots.receive if part is parts[0] else None,
            send=slots.send if part is parts[-1] else None,
            table=table_of(family, model.config, first=slots.bottom[0]),
        ).train(model.training)
        for part in parts
    ]
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
