"""Curves of a run for TensorBoard, written by its own writer where it is installed."""

from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Scalars"]


class Scalars:
    """A writer into `folder`, or into nothing where the extra "tensorboard" is not installed."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = None
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an extra)

            self._writer = SummaryWriter(str(folder))

    def add(self, name: str, value: float, step: int) -> None:
        """One point of the curve `name`."""
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still held back."""
        if self._writer is not None:
            self._writer.close()
