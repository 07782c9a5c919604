"""Tiny models with an encoder that are cut in their decoder, and batches for them."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.split.anatomy import cut_stack
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.cut import Cut, spec_of
from splitlearn.split.merge import merged
from splitlearn.split.weights import GROUPS, load_weights, trunk_groups
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import TrunkModel
from tests.rig import batch_of
from tests.tiny import tiny_batch, tiny_model

Steps = Callable[[int], Sequence[Batch]]


def crossed_model(model_type: str, *, layers: int = 4, **settings: object) -> PreTrainedModel:
    """As `tiny_model`, of two layers below a decoder of `layers`, which is the one that is cut."""
    model = tiny_model(model_type, layers=2, decoder_layers=layers, **settings)  # type: ignore[arg-type]
    cut_stack(model, "decoder")
    return model


def crossed_steps(model: PreTrainedModel, *, micro: int = 2) -> Steps:
    """Different micro-batches at each step: texts padded beyond the longest, targets to theirs."""
    return lambda step: [
        batch_of(tiny_batch(model, lengths=(8 - i, 4 + step % 3, 6), width=9, seed=100 * step + i))
        for i in range(micro)
    ]


def whole_weights(
    local: PreTrainedModel, trunk: Mapping[str, Tensor], *, cut: Cut, blueprint: TrunkModel
) -> dict[str, Tensor]:
    """Of the model put together again; trunk: the layers' weights by name."""
    whole = build_trunk(blueprint, cut=spec_of(cut))
    for group in GROUPS:
        names = trunk_groups(whole)[group]
        load_weights(whole, {name: trunk[name] for name in names}, group=group)
    return merged(local, trunk=whole, cut=cut).state_dict()
