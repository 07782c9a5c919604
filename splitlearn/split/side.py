"""A small network beside the trunk (ladder side tuning, arXiv 2206.06522), for mode "side".

The trunk stands still and is only run forward. At some of its layers it is tapped: what leaves the
layer is projected on the principal components of public text, and all taps of a token travel as one
row. The trusted party trains a ladder of small blocks on them, s = block(g tap + (1 - g) s), whose end
is widened and added to what the last tap alone would give back. The widening begins at zero, so a run
begins as the model that is cut there by "pca". Nothing is computed from labels before the remote stage.
"""

# B batch, T tokens, D width of the model, R rank of a tap, K taps, W width of the side network

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import PretrainedConfig, PreTrainedModel

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.anatomy import family_of, hidden_of, layers_of, replace_layers
from splitlearn.split.bottleneck import Down, PcaBasis, Up, pca_pair
from splitlearn.split.cut import Cut
from splitlearn.split.stage import RemoteStage
from splitlearn.split.trunk import Trunk
from splitlearn.wire.messages import SideSpec

__all__ = [
    "HEAD_WIDTH",
    "Ladder",
    "SideNetwork",
    "SideStage",
    "TappedTrunk",
    "Taps",
    "ladder_in",
    "lay_ladder",
    "put_side",
    "tap",
    "taps_of",
]

# Columns of an attention head in the side network; its width is a multiple.
HEAD_WIDTH = 32


def taps_of(cut: Cut, *, count: int) -> tuple[int, ...]:
    """Layers that are tapped: so many of the trunk's, evenly, the last one always. At most all.

    >>> taps_of(Cut(2, 8), count=3)
    (3, 5, 7)
    """
    layers = cut.last - cut.first
    count = min(count, layers)
    return tuple(cut.last - 1 - (i * layers) // count for i in reversed(range(count)))


class Taps(nn.Module):
    """Sender's side: what leaves each tapped layer, (B, T, D) each, to one (B, T, K x R)."""

    def __init__(self, downs: Mapping[int, Down]) -> None:
        super().__init__()
        self.downs = nn.ModuleDict({str(layer): down for layer, down in downs.items()})

    def forward(self, seen: Mapping[int, Tensor]) -> Tensor:
        return torch.cat([down(seen[int(layer)]) for layer, down in self.downs.items()], dim=2)


class TappedTrunk(Trunk):
    """A trunk whose `send` is Taps: it gives back its taps instead of its last layer's output."""

    def in_order(self) -> list[nn.Module]:
        """As ever, but each tapped layer is watched by this one forward, whose taps come last."""
        assert isinstance(self.send, Taps)
        seen: dict[int, Tensor] = {}
        modules = [self.receive] if self.receive is not None else []
        for name, layer in self.layers.items():
            modules.append(_Watched(layer, int(name), seen) if name in self.send.downs else layer)
        return [*modules, _Seen(self.send, seen)]


class SideNetwork(nn.Module):
    """Receiver's side: (B, T, K x R) to (B, T, D), through a block of width W for each tap.

    restore: from the last tap back to the model's width, and fixed.
    """

    def __init__(self, restore: Up, *, taps: int, rank: int, width: int) -> None:
        super().__init__()
        self.rank, self.width = rank, width
        self.restore = restore
        self.gates = nn.Parameter(torch.zeros(taps, 1))
        self.enter = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(rank), nn.Linear(rank, width)) for _ in range(taps)
        )
        self.blocks = nn.ModuleList(_Block(width) for _ in range(taps))
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, restore.linear.out_features)

    def forward(
        self, z_BTK: Tensor, mask: Tensor | None = None, *_: object, **__: object
    ) -> Tensor:
        taps = torch.split(z_BTK, self.rank, dim=2)
        s_BTW: Tensor | None = None
        for gate, enter, block, tap_BTR in zip(
            torch.sigmoid(self.gates), self.enter, self.blocks, taps, strict=True
        ):
            t_BTW = enter(tap_BTR)
            s_BTW = block(t_BTW if s_BTW is None else gate * t_BTW + (1 - gate) * s_BTW, mask)
        h_BTD: Tensor = self.restore(taps[-1]) + self.widen(self.norm(s_BTW))
        return h_BTD


class SideStage(RemoteStage):
    """A remote stage whose answer goes through the side network."""

    def __init__(self, network: SideNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, h_BTD: Tensor, *args: object, **kwargs: object) -> Tensor:
        z_BTK = super().forward(h_BTD)
        widened: Tensor = self.network(z_BTK, *args, **kwargs)
        return widened

    def __deepcopy__(self, memo: dict[int, object]) -> RemoteStage:
        return RemoteStage()


class Ladder(nn.Module):
    """A tapped trunk and its side network in one place: as a merged and as an unsplit model have them."""

    def __init__(
        self, trunk: nn.ModuleList, *, numbers: Sequence[int], network: SideNetwork
    ) -> None:
        """trunk: what receives if anything does, the layers, whose `numbers` stand beside, and Taps."""
        super().__init__()
        self.trunk = trunk
        self.numbers = tuple(numbers)
        self.network = network

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers that are tapped, by number."""
        taps = self.trunk[-1]
        assert isinstance(taps, Taps)
        return tuple(int(layer) for layer in taps.downs)

    def forward(self, h_BTD: Tensor, *args: object, **kwargs: object) -> Tensor:
        *layers, taps = self.trunk
        receive = len(layers) - len(self.numbers)
        for module in layers[:receive]:
            h_BTD = hidden_of(module(h_BTD, *args, **kwargs))
        seen: dict[int, Tensor] = {}
        for number, layer in zip(self.numbers, layers[receive:], strict=True):
            h_BTD = seen[number] = hidden_of(layer(h_BTD, *args, **kwargs))
        widened: Tensor = self.network(taps(seen), *args, **kwargs)
        return widened


def tap(trunk: Trunk, spec: SideSpec, *, bases: Mapping[int, PcaBasis]) -> TappedTrunk:
    """A trunk of the same layers that gives back its taps. bases: of each tapped layer's output.

    Without bases the projections come without weights (on the meta device). WireError if a spec, which
    may be a peer's, asks for what the trunk has not.
    """
    width, layers = trunk.config.hidden_size, {int(name) for name in trunk.layers}
    wrong = sorted(set(spec.taps) - layers)
    if wrong or list(spec.taps) != sorted(set(spec.taps)) or trunk.send is not None:
        raise WireError(
            f"the peer taps layers {spec.taps} of a trunk of layers {sorted(layers)}; taps are layers of "
            "the trunk, ascending, and its upper cut has no other low-rank place"
        )
    if spec.rank > width:
        raise WireError(
            f"the peer taps a model of width {width} at rank {spec.rank}; it takes at most the width"
        )
    downs = {
        layer: pca_pair(bases.get(layer), width=width, rank=spec.rank)[0] for layer in spec.taps
    }
    return TappedTrunk(
        trunk.config,
        layers={int(name): layer for name, layer in trunk.layers.items()},
        receive=trunk.receive,
        send=Taps(downs),
        table=trunk.table,
    ).train(trunk.training)


def put_side(
    local: PreTrainedModel, spec: SideSpec, *, width: int, basis: PcaBasis, seed: int
) -> None:
    """Put a side network behind the local part's remote stage. basis: of the last tap.

    width: columns of the network. Its first weights are drawn from the seed; torch's own generator
    stays where it was. ManifestError for a decoder, whose tokens must not see those after them.
    """
    if family_of(local).causal:
        raise ManifestError(
            f"a side network sees the tokens that a {local.config.model_type} model is to say; of a "
            'decoder take mode "features", "lora" or "full"'
        )
    stage = SideStage(
        _network(local.config, basis, taps=len(spec.taps), rank=spec.rank, width=width, seed=seed)
    )
    replace_layers(local, [stage if isinstance(m, RemoteStage) else m for m in layers_of(local)])


def ladder_in(stage: SideStage, trunk: Trunk, inner: Sequence[nn.Module]) -> Ladder:
    """The one module that a merged model has for a side stage and its trunk. inner: copies of the
    trunk's modules, in order, to be taken over; the network is copied here.
    """
    numbers = [int(name) for name in trunk.layers]
    network = SideNetwork(
        Up(trunk.config.hidden_size, rank=stage.network.rank),
        taps=len(stage.network.blocks),
        rank=stage.network.rank,
        width=stage.network.width,
    )
    network.load_state_dict(stage.network.state_dict())
    return Ladder(nn.ModuleList(inner), numbers=numbers, network=network)


def lay_ladder(model: PreTrainedModel, *, cut: Cut, spec: SideSpec, width: int) -> PreTrainedModel:
    """The model with its trunk's layers made one Ladder, for weights to be put in. It is changed."""
    layers = list(layers_of(model))
    begin = cut.first - (cut.lower.method == "sft") + (cut.lower.method != "none")
    end = begin + (cut.lower.method != "none") + len(cut.whole)
    rank, size = spec.rank, model.config.hidden_size
    taps = Taps({layer: Down(size, rank=rank) for layer in spec.taps})
    network = SideNetwork(Up(size, rank=rank), taps=len(spec.taps), rank=rank, width=width)
    ladder = Ladder(
        nn.ModuleList([*layers[begin:end], taps]), numbers=list(cut.whole), network=network
    )
    replace_layers(model, [*layers[:begin], ladder, *layers[end:]])
    return model


class _Block(nn.Module):
    """A transformer block that norms first: attention, then a feed-forward part of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.attention_norm = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)

    def forward(self, s_BTW: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, width = s_BTW.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.inward(self.attention_norm(s_BTW)).split(width, dim=2)
        )
        a_BHTC = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        s_BTW = s_BTW + self.outward(a_BHTC.transpose(1, 2).reshape(batch, tokens, width))
        return s_BTW + cast(Tensor, self.contract(gelu(self.expand(self.norm(s_BTW)))))


class _Watched(nn.Module):
    """A layer whose output one forward keeps."""

    def __init__(self, layer: nn.Module, number: int, seen: dict[int, Tensor]) -> None:
        super().__init__()
        self.layer, self.number, self.seen = layer, number, seen

    def forward(self, h_BTD: Tensor, *args: object, **kwargs: object) -> Tensor:
        out_BTD = self.seen[self.number] = hidden_of(self.layer(h_BTD, *args, **kwargs))
        return out_BTD


class _Seen(nn.Module):
    """Taps at the end of one forward, of all that it kept."""

    def __init__(self, taps: Taps, seen: dict[int, Tensor]) -> None:
        super().__init__()
        self.taps, self.seen = taps, seen

    def forward(self, _: Tensor, *__: object, **___: object) -> Tensor:
        z_BTK: Tensor = self.taps(self.seen)
        return z_BTK


def _network(
    config: PretrainedConfig, basis: PcaBasis, *, taps: int, rank: int, width: int, seed: int
) -> SideNetwork:
    _, restore = pca_pair(basis, width=config.hidden_size, rank=rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SideNetwork(restore, taps=taps, rank=rank, width=width)
    nn.init.zeros_(network.widen.weight)
    nn.init.zeros_(network.widen.bias)
    return network
