"""The encoder party's half: a frozen encoder with an adapter after each layer, and a token for the length.

Source ids in, the rows that cross the link out.
"""

# B examples, T tokens of the source, S = T + 1 with the extra one, D width

import torch
from torch import Tensor, nn
from transformers import BertModel

from splitlearn.translation.adapters import EncoderAdapter
from splitlearn.translation.frozen import Frozen, real_tokens
from splitlearn.translation.settings import EncoderShape

__all__ = ["SourceEncoder"]


class SourceEncoder(nn.Module):
    """Give it right-padded source ids. The row before each text's own is what a length is told from."""

    def __init__(self, bert: BertModel, *, shape: EncoderShape, seed: int) -> None:
        """seed: of the adapters. The global random state is left as it was."""
        super().__init__()
        self.frozen = Frozen(bert)
        width = self.frozen.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.extra = nn.Parameter(torch.randn(width) * float(bert.config.initializer_range))
            self.adapters = nn.ModuleList(
                EncoderAdapter(width, inner=shape.inner) for _ in self.frozen.layers
            )
        for parameter in (self.extra, *self.adapters.parameters()):
            parameter.requires_grad_(shape.trains)

    @property
    def trains(self) -> bool:
        """Whether anything in it does."""
        return self.extra.requires_grad

    def forward(self, ids_BT: Tensor, *, lengths: tuple[int, ...]) -> Tensor:
        """(B, T) ids to (B, T + 1, D) rows. lengths: real ids of each, without the extra token."""
        rows, width = ids_BT.shape
        words_BTD = self.frozen.words(ids_BT)
        extra_B1D = self.extra.expand(rows, 1, -1)
        # The extra token shares the first place: those after it stand where they were trained to.
        places_1S = torch.cat((torch.zeros(1, dtype=torch.long), torch.arange(width)))[None]
        h_BSD: Tensor = self.frozen.embeddings(
            inputs_embeds=torch.cat((extra_B1D, words_BTD), dim=1), position_ids=places_1S
        )
        real_BS = real_tokens(tuple(n + 1 for n in lengths), width=width + 1)
        mask = self.frozen.mask(h_BSD, real_BT=real_BS)
        for layer, adapter in zip(self.frozen.layers, self.adapters, strict=True):
            h_BSD = adapter(layer(h_BSD, mask))
        return h_BSD
