"""The keys and values of a trunk's own layers, kept while a text is gone on with.

transformers' cache, told where the trunk begins: its layers keep the numbers they have in the whole
model, and masks are made from what the first one holds. Bounded before anything is computed.
"""

# B texts, S tokens so far

from transformers import DynamicCache, PretrainedConfig

from splitlearn.errors import WireError

__all__ = ["MAX_CACHE_BYTES", "TrunkCache", "check_cache"]

# 4 GiB: 32 layers of width 4,096 in float32 keep one text of 4,096 tokens so.
MAX_CACHE_BYTES = 4 * 2**30


class TrunkCache(DynamicCache):
    """Of the layers from `first` on; empty at first."""

    def __init__(self, config: PretrainedConfig, *, first: int) -> None:
        super().__init__(config=config)
        self._first = first

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):  # type: ignore[no-untyped-def]
        """As of any cache, for a layer that is told its number in the whole model."""
        return super().update(key_states, value_states, layer_idx - self._first, *args, **kwargs)


def check_cache(config: PretrainedConfig, *, layers: int, texts: int, tokens: int) -> None:
    """WireError where so many layers' keys and values of such texts are more than we keep."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    each = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = 2 * 4 * layers * heads * each * texts * tokens
    if size > MAX_CACHE_BYTES:
        raise WireError(
            f"the peer goes on with {texts} texts of {tokens} tokens, whose keys and values would take "
            f"{size} bytes here, more than {MAX_CACHE_BYTES}; fewer or shorter texts fit"
        )
