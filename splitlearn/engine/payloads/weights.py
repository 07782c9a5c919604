"""A trunk's weights as shards of bounded size, and back again, checked against an agreed digest.

Tensors travel in the order of their names. One that is larger than a shard is cut into runs of rows;
its parts are named `name..first_row`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from splitlearn.codecs.base import to_part, to_tensor
from splitlearn.errors import AuditError, WireError
from splitlearn.wire.tensors import Part

__all__ = ["SHARD_BYTES", "Inlet", "keep", "load_kept", "shards"]

# Half a frame: never near its limit, and few enough round trips of credit.
SHARD_BYTES = 32 * 2**20


def shards(
    state: Mapping[str, Tensor], *, limit_bytes: int = SHARD_BYTES
) -> list[tuple[Part, ...]]:
    """The parts of each shard, sharing memory with `state`."""
    out: list[tuple[Part, ...]] = []
    now: list[Part] = []
    size = 0
    for part in _parts(state, limit_bytes=limit_bytes):
        if now and size + len(part.data) > limit_bytes:
            out.append(tuple(now))
            now, size = [], 0
        now.append(part)
        size += len(part.data)
    return [*out, tuple(now)]


class Inlet:
    """Collects shards into tensors whose names, shapes and dtypes are known beforehand.

    Memory is that of the expected tensors, whatever the peer claims; WireError for anything else
    than each row of each tensor exactly once, in order.
    """

    def __init__(self, expected: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
        self._rows: dict[str, list[Tensor]] = {name: [] for name in sorted(expected)}
        self._dtypes = {name: tensor.dtype for name, tensor in expected.items()}

    def take(self, parts: tuple[Part, ...]) -> None:
        """Take one shard."""
        for part in parts:
            name, _, row = part.name.partition("..")
            if name not in self._rows:
                raise WireError(f"the peer sent weights {name!r}, which the agreed trunk has not")
            tensor, held = to_tensor(part), self._rows[name]
            shape = self._shapes[name]
            have = sum(len(rows) for rows in held) if row else 0
            fits = (
                tensor.dtype == self._dtypes[name]
                and tensor.shape[1:] == shape[1:]
                and (tensor.shape == shape if not row else row == str(have))
                and (not held or bool(row))
                and (not shape or have + len(tensor) <= shape[0])
            )
            if not fits:
                raise WireError(
                    f"the peer sent {part.dtype} {part.shape} for weights {part.name!r}; expected "
                    f"{shape} of {self._dtypes[name]}, each row once"
                )
            held.append(tensor)

    def state(self) -> dict[str, Tensor]:
        """All of them; WireError if some are missing."""
        whole: dict[str, Tensor] = {}
        for name, held in self._rows.items():
            tensor = held[0] if len(held) == 1 else torch.cat(held) if held else None
            if tensor is None or tuple(tensor.shape) != self._shapes[name]:
                raise WireError(f"the peer sent weights {name!r} incomplete or not at all")
            whole[name] = tensor
        return whole


def keep(folder: Path, state: Mapping[str, Tensor], *, name: str) -> None:
    """Keep received weights under their digest, for the next start. AuditError if the disk is full."""
    part = folder / f"{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_file(dict(state), part)
        part.rename(folder / f"{name}.safetensors")
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink()
        raise AuditError(
            f"weights cannot be kept in {folder}: {error}; free space there"
        ) from error


def load_kept(folder: Path, *, name: str) -> dict[str, Tensor] | None:
    """What lies under that name, or None; whoever asks compares the digest."""
    try:
        return load_file(folder / f"{name}.safetensors")
    except (OSError, SafetensorError):
        return None


def _parts(state: Mapping[str, Tensor], *, limit_bytes: int) -> Iterator[Part]:
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        size = tensor.numel() * tensor.element_size()
        if size <= limit_bytes or tensor.ndim == 0:
            yield to_part(name, tensor)
            continue
        rows = max(1, limit_bytes * len(tensor) // size)
        for start in range(0, len(tensor), rows):
            yield to_part(f"{name}..{start}", tensor[start : start + rows])
