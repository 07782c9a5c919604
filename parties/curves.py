"""Curves of a trusted party's run for TensorBoard, from its engine's events."""

from collections.abc import Mapping
from pathlib import Path

from splitlearn.engine.events import Event, StepDone, Watched
from splitlearn.engine.scalars import Scalars

__all__ = ["Curves"]


class Curves:
    """Takes an engine's events while its context lasts; where TensorBoard is not installed, for nothing.

    A point for each step, that of a step done again after a restart included, and one for each score.
    """

    def __init__(self, folder: Path) -> None:
        self._scalars = Scalars(folder)

    def __enter__(self) -> "Curves":
        return self

    def __exit__(self, *_: object) -> None:
        self._scalars.close()

    def __call__(self, event: Event) -> None:
        """Note one event."""
        match event:
            case StepDone(step):
                self._scalars.add("loss", event.loss, step)
                self._scalars.add("step_seconds", event.seconds, step)
                self._scalars.add("bytes/out", event.sent_bytes, step)
                self._scalars.add("bytes/in", event.received_bytes, step)
                if event.norm is not None:
                    self._scalars.add("gradient_norm", event.norm, step)
            case Watched(step, score):
                self._scalars.add("held_out/score", score, step)
            case _:
                pass

    def scores(self, scores: Mapping[str, float], *, step: int) -> None:
        """Those of an evaluation after `step` steps."""
        for name, value in scores.items():
            self._scalars.add(f"held_out/{name}", value, step)
