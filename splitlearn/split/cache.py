"""The keys and values of a trunk's own layers, kept while a text is gone on with.

transformers' cache, told where the trunk begins: its layers keep the numbers they have in the whole
model, and masks are made from what the first one holds. A decoder's layers that attend to a memory keep
its keys and values, too, made once. Bounded before anything is computed.
"""

# B texts, S tokens so far

from transformers import DynamicCache, EncoderDecoderCache, PretrainedConfig

from splitlearn.errors import WireError

__all__ = ["MAX_CACHE_BYTES", "MemoryCache", "TrunkCache", "check_cache"]

# 4 GiB: 32 layers of width 4,096 in float32 keep one text of 4,096 tokens so.
MAX_CACHE_BYTES = 4 * 2**30


class TrunkCache(DynamicCache):
    """Of the layers from `first` on; empty at first."""

    def __init__(self, config: PretrainedConfig | None, *, first: int) -> None:
        """config: says which layers have a window; without it none has."""
        super().__init__(config=config)
        self._first = first

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):  # type: ignore[no-untyped-def]
        """As of any cache, for a layer that is told its number in the whole model."""
        return super().update(key_states, value_states, layer_idx - self._first, *args, **kwargs)


class MemoryCache(EncoderDecoderCache):
    """Of a decoder's layers from `first` on that attend to a memory; empty at first.

    What is kept of the memory is looked up by the number that a layer has in the whole decoder.
    """

    def __init__(self, *, first: int) -> None:
        super().__init__(TrunkCache(None, first=first), DynamicCache())


def check_cache(
    config: PretrainedConfig, *, layers: int, texts: int, tokens: int, memory: int = 0
) -> None:
    """WireError where so many layers' keys and values of such texts are more than we keep.

    memory: padded tokens of each one's memory, which is kept itself, too.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    each = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = 2 * 4 * layers * heads * each * texts * (tokens + memory)
    size += 4 * config.hidden_size * texts * memory
    if size > MAX_CACHE_BYTES:
        beside = f" and a memory of {memory}" if memory else ""
        raise WireError(
            f"the peer goes on with {texts} texts of {tokens} tokens{beside}, whose keys and values would "
            f"take {size} bytes here, more than {MAX_CACHE_BYTES}; fewer or shorter texts fit"
        )
