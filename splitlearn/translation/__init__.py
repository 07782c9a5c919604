"""Translation by two frozen encoders with adapters (AB-Net): the model, its objective, and decoding.

Knows neither parties nor a link: what crosses between encoder and decoder is a tensor here.
"""

from splitlearn.translation.decoder import Source, TargetDecoder
from splitlearn.translation.encoder import SourceEncoder
from splitlearn.translation.settings import DecoderShape, EncoderShape, Objective

__all__ = [
    "DecoderShape",
    "EncoderShape",
    "Objective",
    "Source",
    "SourceEncoder",
    "TargetDecoder",
]
