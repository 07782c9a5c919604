"""The trunk of a decoder that attends to an encoder: its second input, which everybody here calls memory.

A decoder's layer is handed the last hidden states of the encoder beside its own input. Both cross the cut
as the rows of one tensor: those of the memory's real tokens, then those of the decoder's own. At home the
memory is a piece of the graph by itself: a Handover stands between encoder and decoder, so that gradients
by the memory, which come from layers on both sides of the cut, can be summed in the order of the unsplit
model before the encoder is gone back through, once.
"""

# B batch, S tokens of the memory (M of them real, in all), U tokens of the decoder, D width, N rows

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput

from splitlearn.errors import WireError
from splitlearn.split.anatomy import base_of, family_of, hidden_of
from splitlearn.split.cache import MemoryCache
from splitlearn.split.rows import mask_of

__all__ = ["Beside", "Handover", "apart_again", "as_one", "hand_over", "run_crossed", "take_back"]


@dataclass(frozen=True)
class Beside:
    """A decoder's second input: (B, S, D), and real tokens of each example."""

    h_BSD: Tensor
    lengths: tuple[int, ...]


class Handover(nn.Module):
    """Stands behind the whole encoder. `exchange` takes its output to what the decoder is handed.

    The engine sets `exchange` before the model runs; without it, it is the same tensor. A copy comes
    without it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exchange: Callable[[Tensor], Tensor] = _as_it_is

    def forward(self, h_BSD: Tensor, *_: object, **__: object) -> Tensor:
        return self.exchange(h_BSD)

    def __deepcopy__(self, _: dict[int, object]) -> "Handover":
        return Handover()


def hand_over(model: PreTrainedModel) -> None:
    """Put a Handover into a model that is cut in its decoder; nothing where it is cut elsewhere."""
    if memory := family_of(model).memory:
        encoder = base_of(model).get_submodule(memory)
        # Behind whatever it does after its last layer: a norm, a dropout.
        encoder.add_module(_HANDOVER, Handover())
        encoder.register_forward_hook(_hand_over)


def take_back(model: PreTrainedModel) -> None:
    """The model without its Handover, if it has one."""
    if memory := family_of(model).memory:
        encoder = base_of(model).get_submodule(memory)
        hooks = encoder._forward_hooks  # noqa: SLF001 - a copy has the hook, and nobody its handle
        for number in [number for number, hook in hooks.items() if hook is _hand_over]:
            del hooks[number]
            delattr(encoder, _HANDOVER)


_HANDOVER = "handover"


def _hand_over(encoder: nn.Module, _: tuple[object, ...], output: BaseModelOutput) -> None:
    """Knows no encoder but the one it is called with, so that it serves a copy as well."""
    output.last_hidden_state = encoder.get_submodule(_HANDOVER)(output.last_hidden_state)


def _as_it_is(h_BSD: Tensor) -> Tensor:
    return h_BSD


def run_crossed(
    layers: Iterable[nn.Module],
    config: PretrainedConfig,
    h_BUD: Tensor,
    *,
    beside: Beside,
    cache: MemoryCache | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """(B, U, D) to (B, U, D): what the base model's decoder does between two of its layers.

    Masks are rebuilt by its own functions. A token sees those before it, so that padding on the right is
    seen by nobody whose output is read.

    cache: what the layers have of these texts already, T tokens, and of the memory; h_BUD is of those after.
    bias: (1, H, U, T + U), of those positions, for layers that share one; by positions of the memory none has
    any.
    """
    texts, width = h_BUD.shape[:2]
    had = 0 if cache is None else cache.get_seq_length()
    mask = create_causal_mask(
        config=config,
        inputs_embeds=h_BUD,
        attention_mask=torch.ones((texts, had + width), device=h_BUD.device),
        cache=None if cache is None else cache.self_attention_cache,
    )
    across = create_bidirectional_mask(
        config=config,
        inputs_embeds=h_BUD,
        attention_mask=mask_of(beside.lengths, width=beside.h_BSD.shape[1]).to(h_BUD.device),
        encoder_hidden_states=beside.h_BSD,
    )
    given = {} if bias is None else {"position_bias": bias}
    given |= {"encoder_hidden_states": beside.h_BSD, "encoder_attention_mask": across}
    for layer in layers:
        h_BUD = hidden_of(layer(h_BUD, mask, cache=cache, use_cache=cache is not None, **given))
    return h_BUD


def as_one(m_MD: Tensor, x_ND: Tensor) -> Tensor:
    """The rows of both as they travel, the memory's first."""
    return torch.cat((m_MD, x_ND))


def apart_again(
    both_ND: Tensor, *, memory: Sequence[int], lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Rows of the memory and of the decoder, from as many tokens of each example.

    WireError where there are not as many rows.
    """
    rows = (sum(memory), sum(lengths))
    if both_ND.shape[0] != sum(rows):
        raise WireError(
            f"{rows[0]} rows of a memory and {rows[1]} of a decoder make {sum(rows)}, but the peer sent a "
            f"tensor of shape {tuple(both_ND.shape)}"
        )
    return both_ND[: rows[0]], both_ND[rows[0] :]
