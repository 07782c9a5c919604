"""The step that both trainers do after a backward: clip, AdamW, schedule; saved and loaded exactly."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import get_scheduler

from splitlearn.errors import AuditError, ManifestError
from splitlearn.pretrain.settings import TrainingSettings

__all__ = ["Stepper"]


class Stepper:
    """A model's optimiser and schedule; `steps` were done."""

    def __init__(self, model: nn.Module, *, settings: TrainingSettings) -> None:
        self.model, self.settings, self.steps = model, settings, 0
        trained = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {
                "params": [p for p in trained if p.ndim >= 2],
                "weight_decay": settings.weight_decay,
            },
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimiser = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            # One pass over each tensor: an embedding's step is nine times as fast on a CPU.
            fused=True,
        )
        self._schedule = get_scheduler(
            settings.schedule,
            self._optimiser,
            num_warmup_steps=settings.warmup_steps,
            num_training_steps=settings.total_steps,
        )

    def step(self, loss: Tensor, *, name: str) -> None:
        """Backward from `loss` and one step. ManifestError, and no step, if it is no finite number."""
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            self._optimiser.zero_grad(set_to_none=True)
            raise ManifestError(
                f"the {name}'s loss or gradient is no finite number at step {self.steps + 1}; go on "
                "from the newest checkpoint with a lower learning rate or more warm-up steps"
            )
        self._optimiser.step()
        self._schedule.step()
        self._optimiser.zero_grad(set_to_none=True)
        self.steps += 1

    def save(self, folder: Path, *, extra: Mapping[str, object]) -> None:
        """Weights, optimiser and schedule, and `extra` (JSON); the folder is whole or the old one.

        Raises AuditError where the disk is full or not writable.
        """
        part, gone = _beside(folder, "part"), _beside(folder, "gone")
        schedule = {
            key: value
            for key, value in self._schedule.state_dict().items()
            if isinstance(value, int | float) or key in ("base_lrs", "_last_lr")
        }
        groups = self._optimiser.state_dict()["param_groups"]
        state = {"steps": self.steps, "groups": groups, "schedule": schedule, "extra": dict(extra)}
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True, mode=0o700)
            save_file(self._weights(), part / _WEIGHTS)
            save_file(self._moments(), part / _MOMENTS)
            (part / _STATE).write_text(json.dumps(state))
            for path in (*part.iterdir(), part):
                _sync(path)
            shutil.rmtree(gone, ignore_errors=True)
            if folder.exists():
                folder.rename(gone)
            part.rename(folder)
            _sync(folder.parent)
            shutil.rmtree(gone, ignore_errors=True)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(part, ignore_errors=True)
            raise AuditError(
                f"a checkpoint cannot be written to {folder}: {error}; free space there or choose "
                "another run folder, then start again"
            ) from error

    def load(self, folder: Path) -> dict[str, object]:
        """Into the saved state; what was saved as extra. ManifestError if it does not fit, unchanged."""
        # A crash between the two renames leaves the old one under its other name.
        place = folder if folder.exists() else _beside(folder, "gone")
        try:
            weights, moments = load_file(place / _WEIGHTS), load_file(place / _MOMENTS)
            state = json.loads((place / _STATE).read_text())
            wanted = self._weights()
            if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in wanted.items()}:
                raise KeyError("its weights are those of another model")
            steps, extra = int(state["steps"]), dict(state["extra"])
            entries: dict[int, dict[str, Tensor]] = {}
            for name, tensor in moments.items():
                index, key = name.split(".", 1)
                entries.setdefault(int(index), {})[key] = tensor
            self._optimiser.load_state_dict({"state": entries, "param_groups": state["groups"]})
            self._schedule.load_state_dict({**self._schedule.state_dict(), **state["schedule"]})
            with torch.no_grad():
                for name, tensor in wanted.items():
                    tensor.copy_(weights[name])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(
                f"checkpoint {folder} cannot be used: {error}; go on from another one, or begin anew "
                "in another folder"
            ) from error
        self.steps = steps
        return extra

    def digest(self) -> str:
        """sha256, in hex, over steps, weights and the optimiser's moments."""
        found = hashlib.sha256(f"steps {self.steps}\n".encode())
        for tensors in (self._weights(), self._moments()):
            for name in sorted(tensors):
                tensor = tensors[name].cpu().contiguous()
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    @contextmanager
    def dropping(self, seed: int) -> Iterator[None]:
        """Draw dropout from `seed` inside the block. torch has one generator a process: others wait."""
        with _generator, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().contiguous() for name, p in self.model.named_parameters()}

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"{index}.{key}": value.contiguous()
            for index, entry in self._optimiser.state_dict()["state"].items()
            for key, value in entry.items()
            if isinstance(value, Tensor)
        }


_WEIGHTS, _MOMENTS, _STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
_generator = threading.Lock()


def _beside(folder: Path, state: str) -> Path:
    return folder.with_name(f".{folder.name}.{state}")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
