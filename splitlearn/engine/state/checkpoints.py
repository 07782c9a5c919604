"""A party's saved states, one folder a step, whole or absent.

Tensors lie in safetensors files, everything else in JSON; nothing is pickled. A checkpoint is
written beside its place, synced and renamed, so that a crash leaves the old ones and no half one.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from splitlearn.engine.state.optimiser import Stepper
from splitlearn.errors import AuditError, ManifestError

__all__ = ["KEPT", "Checkpoints"]

# The peer is at most one checkpoint behind or ahead, so the newest that both hold is among two.
KEPT = 2

_WEIGHTS, _OPTIMISER, _STATE = "weights.safetensors", "optimiser.safetensors", "state.json"


class Checkpoints:
    """The checkpoints of one run below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def held(self) -> tuple[int, ...]:
        """The steps held, ascending."""
        if not self.folder.is_dir():
            return ()
        return tuple(sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit()))

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        stepper: Stepper,
        extra: Mapping[str, object],
        best: int | None = None,
    ) -> None:
        """Save the trained parameters, the optimiser and `extra` (JSON) as the state after `step`.

        The newest KEPT are held, and that of step `best`, noted as the best so far. Raises AuditError
        where the disk is full or not writable: a run that cannot be resumed should not go on.
        """
        part = self.folder / f"{step}.part"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True, mode=0o700)
            save_file({n: t.cpu() for n, t in _trained(model).items()}, part / _WEIGHTS)
            tensors, state = _optimiser_state(stepper)
            save_file(tensors, part / _OPTIMISER)
            whole = {**state, "step": step, "best": best, "extra": dict(extra)}
            (part / _STATE).write_text(json.dumps(whole))
            for path in (*part.iterdir(), part):
                _sync(path)
            self._drop(step)
            part.rename(self.folder / str(step))
            _sync(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(part, ignore_errors=True)
            raise AuditError(
                f"checkpoint {step} cannot be written to {self.folder}: {error}; free space there "
                "or choose another run folder, then start again"
            ) from error
        for old in self.held()[:-KEPT]:
            if old != best:
                self._drop(old)

    def load(self, step: int, *, model: nn.Module, stepper: Stepper) -> dict[str, object]:
        """Put `model` and `stepper` into the state after `step`; what was saved as extra.

        Raises ManifestError if the checkpoint does not fit the model.
        """
        place = self.folder / str(step)
        try:
            weights = load_file(place / _WEIGHTS)
            tensors = load_file(place / _OPTIMISER)
            state = json.loads((place / _STATE).read_text())
            wanted = _trained(model)
            if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in wanted.items()}:
                raise KeyError("its weights are those of another model")
            with torch.no_grad():
                for name, tensor in wanted.items():
                    tensor.copy_(weights[name])
            _restore(stepper, tensors, state)
            extra: dict[str, object] = state["extra"]
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ManifestError(
                f"checkpoint {place} cannot be used: {error}; remove that folder to go on from an "
                "older one"
            ) from error
        return extra

    def noted(self, step: int) -> dict[str, object]:
        """What was saved as extra with the state after `step`. ManifestError if it cannot be read."""
        extra: dict[str, object] = self._state(step)["extra"]
        return extra

    def best(self) -> tuple[int, ...]:
        """The steps held that an evaluation may take, ascending: of each checkpoint the best when it was
        saved, or itself where none was kept. ManifestError if one cannot be read.
        """
        held = self.held()
        noted = {step: self._state(step).get("best") for step in held}
        taken = {best if best in noted else step for step, best in noted.items()}
        return tuple(sorted(taken))

    def _state(self, step: int) -> dict[str, Any]:
        place = self.folder / str(step)
        try:
            state: dict[str, Any] = json.loads((place / _STATE).read_text())
            state["extra"]  # is what no state lacks
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"checkpoint {place} cannot be used: {error}") from error
        return state

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints newer than `step`: the run goes on from there."""
        for newer in self.held():
            if newer > step:
                self._drop(newer)

    def _drop(self, step: int) -> None:
        """Remove one: first out of sight, so that a crash leaves no half one to go on from."""
        place, gone = self.folder / str(step), self.folder / f"{step}.gone"
        shutil.rmtree(gone, ignore_errors=True)
        if place.exists():
            place.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad
    }


def _optimiser_state(stepper: Stepper) -> tuple[dict[str, Tensor], dict[str, object]]:
    if stepper.optimiser is None or stepper.scheduler is None:
        return {}, {"groups": [], "schedule": {}}
    whole = stepper.optimiser.state_dict()
    tensors = {
        f"{index}.{key}": value.contiguous().cpu()
        for index, entry in whole["state"].items()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }
    schedule = {
        key: value
        for key, value in stepper.scheduler.state_dict().items()
        if isinstance(value, int | float) or key in ("base_lrs", "_last_lr")
    }
    return tensors, {"groups": whole["param_groups"], "schedule": schedule}


def _restore(stepper: Stepper, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
    if stepper.optimiser is None or stepper.scheduler is None:
        return
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = tensor
    stepper.optimiser.load_state_dict({"state": entries, "param_groups": state["groups"]})
    whole = stepper.scheduler.state_dict()
    schedule = state["schedule"]
    if not isinstance(schedule, dict):
        raise KeyError("schedule")
    stepper.scheduler.load_state_dict({**whole, **schedule})


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
