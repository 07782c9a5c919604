"""Narrow passages for a cut: pairs of modules that stand among a model's layers and are called alike.

"pca": Down (D to R) and Up (R to D) around the cut, first fitted to the principal components of the
hidden states of public text. "sft" (arXiv 2211.16703): the block at the cut is taken apart; its
attention half keeps the residual and norm and sends `S V x`, its feed-forward half receives; the
first feed-forward matrix becomes three trainable linears by truncated SVD, and the feed-forward
residual is gone, because x does not travel. Everything here is fitted without a random number.
"""

# B batch, T tokens, D width, R rank, M inner width of a block, N rows

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import base_of, family_of, hidden_of, layers_of, replace_layers
from splitlearn.split.families import Halves

__all__ = ["Down", "PcaBasis", "SftReceiver", "SftSender", "Up", "fit_pca", "pca_pair", "sft_pair"]


@dataclass(frozen=True)
class PcaBasis:
    """Where public hidden states lie: their mean, (D), and first principal components, (R, D).

    The components are orthonormal; `kept` is the share of the variance they hold, 0 to 1.
    """

    mean: Tensor
    components: Tensor
    kept: float


class Down(nn.Module):
    """Sender's side of "pca": (B, T, D) to (B, T, R)."""

    def __init__(self, width: int, *, rank: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, rank)

    def forward(self, h_BTD: Tensor, *_: object, **__: object) -> Tensor:
        narrowed: Tensor = self.linear(h_BTD)
        return narrowed


class Up(nn.Module):
    """Receiver's side of "pca": (B, T, R) to (B, T, D)."""

    def __init__(self, width: int, *, rank: int) -> None:
        super().__init__()
        self.linear = nn.Linear(rank, width)

    def forward(self, z_BTR: Tensor, *_: object, **__: object) -> Tensor:
        widened: Tensor = self.linear(z_BTR)
        return widened


class SftSender(nn.Module):
    """Sender's side of "sft": a block's attention half, then V (D to R) and S (R to R)."""

    def __init__(
        self, attention: nn.Module, *, norm: nn.Module | None, width: int, rank: int
    ) -> None:
        super().__init__()
        self.attention = attention
        self.norm = norm
        self.basis = nn.Linear(width, rank, bias=False)
        self.scale = nn.Linear(rank, rank, bias=False)

    def forward(
        self, h_BTD: Tensor, mask: Tensor | None = None, *_: object, **__: object
    ) -> Tensor:
        x_BTD: Tensor = self.attention(h_BTD, mask)[0]
        if self.norm is not None:
            x_BTD = self.norm(x_BTD + h_BTD)
        z_BTR: Tensor = self.scale(self.basis(x_BTD))
        return z_BTR


class SftReceiver(nn.Module):
    """Receiver's side of "sft": U (R to M) with the block's bias, then the rest of its second half."""

    def __init__(
        self,
        *,
        activation: nn.Module,
        contract: nn.Linear,
        dropout: nn.Module,
        norm: nn.Module,
        rank: int,
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(rank, contract.in_features)
        self.activation = activation
        self.contract = contract
        self.dropout = dropout
        self.norm = norm

    def forward(self, z_BTR: Tensor, *_: object, **__: object) -> Tensor:
        y_BTM = self.activation(self.expand(z_BTR))
        o_BTD: Tensor = self.norm(self.dropout(self.contract(y_BTM)))
        return o_BTD


def fit_pca(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, layer: int, rank: int
) -> PcaBasis:
    """Principal components of what leaves the first `layer` layers of an unsplit, unfactored model.

    batches: model inputs (input_ids, attention_mask, ...) of public text; padding does not count.
    Sums in float64. ManifestError if there are fewer tokens than components.
    """
    width = model.config.hidden_size
    total_D = torch.zeros(width, dtype=torch.float64)
    square_DD = torch.zeros((width, width), dtype=torch.float64)
    count = 0
    with _first_layers(model, layer) as leaves, torch.no_grad():
        for batch in batches:
            h_BTD = leaves(batch)
            mask_BT = batch.get("attention_mask", torch.ones(h_BTD.shape[:2])).bool()
            rows_ND = h_BTD[mask_BT].double().cpu()
            total_D += rows_ND.sum(0)
            square_DD += rows_ND.T @ rows_ND
            count += len(rows_ND)
    if count < rank:
        raise ManifestError(
            f"public text of {count} tokens cannot fit a bottleneck of rank {rank}; give more text"
        )
    mean_D = total_D / count
    variance_D, vectors_DD = torch.linalg.eigh(square_DD / count - torch.outer(mean_D, mean_D))
    basis_RD = _same_sign(vectors_DD.T.flip(0)[:rank])
    kept = float(variance_D.flip(0)[:rank].sum() / variance_D.sum())
    return PcaBasis(mean=mean_D.float(), components=basis_RD.float(), kept=kept)


def pca_pair(basis: PcaBasis | None, *, width: int, rank: int) -> tuple[Down, Up]:
    """Down and Up that project on the basis around its mean; without weights where basis is None."""
    with torch.device("meta"):
        down, up = Down(width, rank=rank), Up(width, rank=rank)
    if basis is not None:
        if basis.components.shape != (rank, width):
            raise ManifestError(
                f"a PCA basis of shape {tuple(basis.components.shape)} was given for a cut of rank {rank} "
                f"in a model of width {width}; fit it again for this model and rank"
            )
        shift_R = -(basis.components.double() @ basis.mean.double()).float()
        _assign(down.linear, basis.components, shift_R)
        _assign(up.linear, basis.components.T, basis.mean)
    return down, up


def sft_pair(block: nn.Module, *, halves: Halves, rank: int) -> tuple[SftSender, SftReceiver]:
    """A block's two halves around the truncated SVD of its first feed-forward matrix.

    The block's own modules are taken over, not copied. A block on the meta device gives a pair
    without weights.
    """
    expand = _linear_at(block, halves.expand)
    with torch.device("meta"):
        sender = SftSender(
            block.get_submodule(halves.attention),
            norm=None
            if halves.attention_norm is None
            else block.get_submodule(halves.attention_norm),
            width=expand.in_features,
            rank=rank,
        )
        receiver = SftReceiver(
            activation=block.get_submodule(halves.activation),
            contract=_linear_at(block, halves.contract),
            dropout=block.get_submodule(halves.dropout),
            norm=block.get_submodule(halves.norm),
            rank=rank,
        )
    if not expand.weight.is_meta:
        with torch.no_grad():
            u_MD, s_D, v_DD = torch.linalg.svd(expand.weight.double(), full_matrices=False)
            v_RD = _same_sign(v_DD[:rank])
            u_MR = u_MD[:, :rank] * (v_RD * v_DD[:rank]).sum(1).sign()
            dtype = expand.weight.dtype
            _assign(sender.basis, v_RD.to(dtype), None)
            _assign(sender.scale, torch.diag(s_D[:rank]).to(dtype), None)
            _assign(receiver.expand, u_MR.to(dtype), expand.bias.detach())
    return sender, receiver


@contextmanager
def _first_layers(
    model: PreTrainedModel, count: int
) -> Iterator[Callable[[Mapping[str, Tensor]], Tensor]]:
    """What leaves a model's first layers, (B, T, D), in evaluation mode; put back as it was afterwards.

    Not the base model's own output: some put a last norm behind their layers.
    """
    layers = list(layers_of(model))
    training = model.training
    left: list[Tensor] = []
    replace_layers(model, layers[:count])
    hook = layers[count - 1].register_forward_hook(lambda _, __, h: left.append(hidden_of(h)))
    model.train(False)

    def leaves(batch: Mapping[str, Tensor]) -> Tensor:
        walker = family_of(model).walker
        base_of(model).get_submodule(walker)(**batch)
        return left.pop()

    try:
        yield leaves
    finally:
        hook.remove()
        replace_layers(model, layers)
        model.train(training)


def _same_sign(vectors_RD: Tensor) -> Tensor:
    """Each vector turned so that its largest entry is positive: the same basis on every machine."""
    largest_R1 = vectors_RD.abs().argmax(1, keepdim=True)
    return vectors_RD * vectors_RD.gather(1, largest_R1).sign()


def _assign(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    linear.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone())


def _linear_at(block: nn.Module, name: str) -> nn.Linear:
    linear = block.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return linear
