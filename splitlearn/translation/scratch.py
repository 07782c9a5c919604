"""What a pre-trained pair is held against: the same network, nothing trained before, and all of it training.

Same layers, widths, adapters, objective and decoding, so that what is compared is the pre-training alone.
"""

from torch import Tensor
from transformers import BertConfig

from splitlearn.translation.decoder import TargetDecoder
from splitlearn.translation.encoder import SourceEncoder
from splitlearn.translation.frozen import build_bert
from splitlearn.translation.settings import DecoderShape, EncoderShape

__all__ = ["from_scratch"]


def from_scratch(
    config: BertConfig,
    *,
    words_V: Tensor,
    encoder: EncoderShape,
    decoder: DecoderShape,
    seed: int,
) -> tuple[SourceEncoder, TargetDecoder]:
    """Both halves with every weight drawn by `seed` and none that stands still."""
    source = SourceEncoder(build_bert(config, seed=seed), shape=encoder, seed=seed + 1)
    target = TargetDecoder(
        build_bert(config, seed=seed + 2), words_V=words_V, shape=decoder, seed=seed + 3
    )
    source.requires_grad_(True)
    target.requires_grad_(True)
    return source, target
