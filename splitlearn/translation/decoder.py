"""The decoder party's half: a frozen encoder that sees source rows through its adapters and fills in words.

It reads a target in both directions, with some of its words masked, and gives a score to each word that
it may write. How long a target will be it tells from the source's extra row.
"""

# B examples, S tokens of the source, T of the target, M masked ones, D width, V words, L lengths

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertModel

from splitlearn.translation.adapters import DecoderAdapter
from splitlearn.translation.frozen import Frozen, real_tokens
from splitlearn.translation.settings import DecoderShape

__all__ = ["Source", "TargetDecoder"]


@dataclass(frozen=True)
class Source:
    """An encoder's output, padding anything. lengths: real rows of each example, the extra one included."""

    rows_BSD: Tensor
    lengths: tuple[int, ...]

    @property
    def real(self) -> Tensor:
        """True at the real rows, (B, S)."""
        return real_tokens(self.lengths, width=self.rows_BSD.shape[1])


class TargetDecoder(nn.Module):
    """words_V: the ids that it may write, ascending; the input embeddings of these are its output's too."""

    def __init__(self, bert: BertModel, *, words_V: Tensor, shape: DecoderShape, seed: int) -> None:
        """seed: of what trains. The global random state is left as it was."""
        super().__init__()
        self.frozen, self.reach = Frozen(bert), shape.reach
        width, heads = self.frozen.width, int(bert.config.num_attention_heads)
        self.words_V: Tensor
        self.register_buffer("words_V", words_V)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.adapters = nn.ModuleList(
                DecoderAdapter(width, heads=heads, inner=shape.inner) for _ in self.frozen.layers
            )
            self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
            self.bias_V = nn.Parameter(torch.zeros(len(words_V)))
            self.length = nn.Linear(width, 2 * shape.reach + 1)
        for index, adapter in enumerate(self.adapters):
            assert isinstance(adapter, DecoderAdapter)
            adapter.begin_as(self.frozen.norm_after(index))

    def forward(self, ids_BT: Tensor, *, lengths: tuple[int, ...], source: Source) -> Tensor:
        """(B, T) ids, some of them masks, to (B, T, D) rows that `scores` takes."""
        h_BTD: Tensor = self.frozen.embeddings(input_ids=ids_BT)
        mask = self.frozen.mask(h_BTD, real_BT=real_tokens(lengths, width=ids_BT.shape[1]))
        real_BS = source.real
        for layer, adapter in zip(self.frozen.layers, self.adapters, strict=True):
            h_BTD = adapter(layer(h_BTD, mask), source_BSD=source.rows_BSD, real_BS=real_BS)
        return h_BTD

    def scores(self, h_MD: Tensor) -> Tensor:
        """(M, D) rows to (M, V) logits over `words_V`."""
        return functional.linear(
            self.transform(h_MD), self.frozen.words.weight[self.words_V], self.bias_V
        )

    def length_scores(self, source: Source) -> Tensor:
        """(B, L) logits: how many pieces a target has more than its source, from -reach on."""
        scores_BL: Tensor = self.length(source.rows_BSD[:, 0])
        return scores_BL
