"""ELECTRA-style pre-training: one language's text to corrupted ids, and ids to a discriminator's loss.

Knows models, text and vocabularies; never sends, and never decides what may leave.
"""

from splitlearn.pretrain.mixing import draw, shares

__all__ = ["draw", "shares"]
