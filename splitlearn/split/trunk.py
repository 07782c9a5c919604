"""Layers of a model at somebody who has nothing else of it: never embeddings, top or head.

Whatever a base model gives its layers beside hidden states is rebuilt here from lengths: masks, positions,
tables of angles, biases, each by the function that the base model itself uses.
"""

# B batch, T padded length, D width (R where the cut is narrow), H heads

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)

from splitlearn.errors import WireError
from splitlearn.split.anatomy import border_of, hidden_of, rotary_of, trunk_of
from splitlearn.split.cache import MemoryCache, TrunkCache
from splitlearn.split.crossing import Beside, run_crossed
from splitlearn.split.rows import mask_of, positions_of
from splitlearn.split.trunks import TRUNKS

__all__ = ["Trunk"]

# 64 texts of 1,024 tokens over 64 heads, 16 GiB: a bias makes masks as large as the scores of attention.
MAX_SCORES = 2**32


class Trunk(nn.Module):
    """Layers [first, last), with the receiving module before and the sending one after, if any.

    Layers keep the numbers they have in the whole model, so weight names read "layers.2. ...". config: as
    `config_at` gives it for them. table: as `table_of` makes it, for families that have one; its weights are
    the first layer's of that stack, which is elsewhere.
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
        cache: TrunkCache | MemoryCache | None = None,
        beside: Beside | None = None,
    ) -> Tensor:
        """(B, T, entrance) to (B, T, exit); `lengths` are the real tokens of each example.

        cache: what `empty_cache` gave for these texts and has of them by now; h_BTD is of the tokens after.
        beside: of a crossed trunk, its memory.
        """
        assert (beside is not None) is self._crossed, (
            "a memory for a decoder's trunk, and for no other"
        )
        if beside is not None:
            assert not isinstance(cache, TrunkCache), "a decoder's trunk keeps its memory, too"
            had = 0 if cache is None else cache.get_seq_length()
            memory = beside.h_BSD.shape[1]
            bias = None if self.table is None else self._bias(h_BTD, had=had, memory=memory)
            return run_crossed(
                self.in_order(), self.config, h_BTD, beside=beside, cache=cache, bias=bias
            )
        assert not isinstance(cache, MemoryCache), "no memory is kept of what is sent none"
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

    def _bias(self, h_BTD: Tensor, *, memory: int = 0, had: int = 0) -> Tensor:
        """What the first layer adds to scores of attention and hands on to all others, (1, H, T, had + T).

        memory: width of what a decoder attends to beside; had: tokens that come before these, which attend
        to them, too. WireError where it, or the zeros that are added for a memory, would be too large with a
        batch's mask in it, as attention takes it.
        """
        assert self.table is not None
        texts, width = h_BTD.shape[:2]
        widest = max(had + width, memory)
        scores = texts * self.config.num_attention_heads * width * widest
        if scores > MAX_SCORES:
            raise WireError(
                f"the peer sent {texts} texts padded to {widest} tokens, which have {scores} pairs of tokens "
                f"over all heads, more than {MAX_SCORES}; use smaller batches"
            )
        compute = cast(Callable[..., Tensor], self.table.compute_bias)
        return compute(width, had + width, past_seen_tokens=had)

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

    def empty_cache(self) -> TrunkCache | MemoryCache:
        """For texts that begin."""
        first = min(map(int, self.layers), default=0)
        if self._crossed:  # whose layers count from the decoder's first
            return MemoryCache(first=first - (border_of(self.config) or 0))
        return TrunkCache(self.config, first=first)

    def in_order(self) -> list[nn.Module]:
        """What the trunk runs, first to last."""
        modules = [self.receive, *self.layers.values(), self.send]
        return [module for module in modules if module is not None]
