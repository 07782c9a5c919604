"""What a job's data and model mean: rows, token ids and targets, micro-batches, scores.

Runs at the trusted party only. Nothing of this room is ever sent.
"""

from splitlearn.tasks.batches import Batch, Steps, batch, epoch_order, micro_batches
from splitlearn.tasks.encode import IGNORED, Encoded, Example, encode
from splitlearn.tasks.models import Loaded, load_model
from splitlearn.tasks.randomise import randomised
from splitlearn.tasks.rows import AnswerRow, Rows, TextRow, TokenRow, load_rows
from splitlearn.tasks.score import Scorer, majority_score

__all__ = [
    "IGNORED",
    "AnswerRow",
    "Batch",
    "Encoded",
    "Example",
    "Loaded",
    "Rows",
    "Scorer",
    "Steps",
    "TextRow",
    "TokenRow",
    "batch",
    "encode",
    "epoch_order",
    "load_model",
    "load_rows",
    "majority_score",
    "micro_batches",
    "randomised",
]
