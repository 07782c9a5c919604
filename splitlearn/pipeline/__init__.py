"""What happens when in a step: the schedule of its micro-batches."""

from splitlearn.pipeline.schedule import Action, Op, fill_drain

__all__ = ["Action", "Op", "fill_drain"]
