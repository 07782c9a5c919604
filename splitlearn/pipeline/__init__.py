"""What happens when in a step: the schedule of its micro-batches."""

from splitlearn.pipeline.chain import Chain, Pipe, Run, Span, StageCosts
from splitlearn.pipeline.schedule import (
    ORDERS,
    Action,
    Op,
    fill_drain,
    one_forward_one_backward,
)
from splitlearn.pipeline.simulate import simulate

__all__ = [
    "ORDERS",
    "Action",
    "Chain",
    "Op",
    "Pipe",
    "Run",
    "Span",
    "StageCosts",
    "fill_drain",
    "one_forward_one_backward",
    "simulate",
]
