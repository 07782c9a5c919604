"""Tiny models with an encoder that are cut in their decoder, and batches for them."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from transformers import PreTrainedModel

from splitlearn.split.anatomy import cut_stack
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.cut import Cut
from splitlearn.split.merge import joined_trunk, merged
from splitlearn.split.weights import GROUPS, load_weights, trunk_groups
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Offer
from tests.rig import batch_of
from tests.tiny import RELATIVE, tiny_batch, tiny_model

Steps = Callable[[int], Sequence[Batch]]


def crossed_model(model_type: str, *, layers: int = 4, **settings: object) -> PreTrainedModel:
    """As `tiny_model`, of two layers below a decoder of `layers`, which is the one that is cut."""
    model = _tiny(model_type, below=2, above=layers, **settings)
    cut_stack(model, "decoder")
    return model


def both_model(model_type: str, *, layers: int = 3, **settings: object) -> PreTrainedModel:
    """As `tiny_model`, of as many layers in the encoder as in the decoder, both of which are cut."""
    model = _tiny(model_type, below=layers, above=layers, **settings)
    cut_stack(model, "both")
    return model


def _tiny(name: str, *, below: int, above: int, **settings: object) -> PreTrainedModel:
    """name: a model type, or "t5-1.1", which gates and has a head of its own."""
    model_type, _, kind = name.partition("-")
    settings["num_decoder_layers" if model_type in RELATIVE else "decoder_layers"] = above
    if kind:
        settings |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    model = tiny_model(model_type, layers=below, **settings)  # type: ignore[arg-type]
    if kind:
        words = model.get_input_embeddings().weight
        model.get_output_embeddings().weight = nn.Parameter(words.detach().flip(0).clone())
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.config.use_cache = False  # as a job's model is loaded
    return model


def crossed_steps(model: PreTrainedModel, *, micro: int = 2) -> Steps:
    """Different micro-batches at each step: texts padded beyond the longest, targets to theirs."""
    return lambda step: [
        batch_of(tiny_batch(model, lengths=(8 - i, 4 + step % 3, 6), width=9, seed=100 * step + i))
        for i in range(micro)
    ]


def whole_weights(
    local: PreTrainedModel, trunk: Mapping[str, Tensor], *, cut: Cut, offers: Sequence[Offer]
) -> dict[str, Tensor]:
    """Of the model put together again; trunk: the layers' weights by name; offers: to each party."""
    parts = [build_trunk(offer.model, cut=offer.cut) for offer in offers]
    for part in parts:
        for group in GROUPS:
            names = trunk_groups(part)[group]
            load_weights(part, {name: trunk[name] for name in names}, group=group)
    return merged(local, trunk=joined_trunk(parts), cut=cut).state_dict()
