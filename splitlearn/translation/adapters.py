"""What AB-Net adds to frozen layers (arXiv 2010.06138): one adapter after each, the only parts that train.

An adapter begins as what it is put after: what it adds is drawn as zero.
"""

# B examples, S tokens of the source, T tokens of the target, H heads, D width

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DecoderAdapter", "EncoderAdapter"]


class EncoderAdapter(nn.Module):
    """h + W2 ReLU(W1 LN(h)), with `inner` numbers between the two."""

    def __init__(self, width: int, *, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = _zero(nn.Linear(inner, width))

    def forward(self, h_BSD: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        added_BSD: Tensor = self.down(torch.relu(self.up(self.norm(h_BSD))))
        return h_BSD + added_BSD


class DecoderAdapter(nn.Module):
    """Cross-attention to the encoder's output, then a feed-forward part; each with residual and norm."""

    def __init__(self, width: int, *, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = _zero(nn.Linear(width, width))
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = _zero(nn.Linear(inner, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, h_BTD: Tensor, *, source_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D). real_BS: True at the source's real tokens."""
        attended_BHTD = functional.scaled_dot_product_attention(
            self._by_head(self.query(h_BTD)),
            self._by_head(self.key(source_BSD)),
            self._by_head(self.value(source_BSD)),
            attn_mask=real_BS[:, None, None, :],
        )
        attended_BTD = attended_BHTD.transpose(1, 2).flatten(2)
        h_BTD = self.attention_norm(h_BTD + self.out(attended_BTD))
        out_BTD: Tensor = self.norm(h_BTD + self.down(torch.relu(self.up(h_BTD))))
        return out_BTD

    def begin_as(self, norm: nn.LayerNorm) -> None:
        """Take the scale of what stands before, so that the frozen layer after it gets what it knows."""
        with torch.no_grad():
            for mine in (self.attention_norm, self.norm):
                mine.weight.copy_(norm.weight)
                mine.bias.copy_(norm.bias)

    def _by_head(self, x_BTD: Tensor) -> Tensor:
        rows, places, width = x_BTD.shape
        return x_BTD.view(rows, places, self.heads, width // self.heads).transpose(1, 2)


def _zero(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
