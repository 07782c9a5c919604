"""A trunk's weights: named in two groups, digested, read from a model folder, put in strictly.

Group "layers" is what stands unchanged in the model folder that everybody can download, with the table
of relative positions that the layers read, if there is one; group "bottlenecks" is what the trusted
party made for this cut. Tensors are read from safetensors files only, and of a folder only the trunk's
own.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.families import Family
from splitlearn.split.trunk import Trunk
from splitlearn.split.trunks import TRUNKS
from splitlearn.wire.messages import CutSpec, TrunkModel

__all__ = [
    "GROUPS",
    "Group",
    "digest",
    "load_layers_from_folder",
    "load_weights",
    "stands_still",
    "trunk_groups",
    "trunk_state",
]

Group = Literal["layers", "bottlenecks"]
GROUPS: tuple[Group, ...] = ("layers", "bottlenecks")
_TABLE = "table."
_PUBLIC = ("layers.", _TABLE)


def trunk_groups(trunk: Trunk) -> dict[Group, tuple[str, ...]]:
    """The names of the trunk's weights by group, in order."""
    names = tuple(trunk.state_dict())
    return {
        "layers": tuple(name for name in names if name.startswith(_PUBLIC)),
        "bottlenecks": tuple(name for name in names if not name.startswith(_PUBLIC)),
    }


def stands_still(name: str) -> bool:
    """Whether a trunk's weight of this name never trains, so that nobody hands it back.

    >>> stands_still("table.relative_attention_bias.weight")
    True
    """
    return name.startswith(_TABLE)


def trunk_state(trunk: Trunk, *, group: Group) -> dict[str, Tensor]:
    """One group's weights by name: the trunk's own memory, detached."""
    state = trunk.state_dict()
    return {name: state[name] for name in trunk_groups(trunk)[group]}


def digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, sorted by name: hex, 64 characters.

    >>> digest({})
    'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
    """
    total = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        total.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().reshape(-1).contiguous()
        total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()


def load_weights(trunk: Trunk, state: Mapping[str, Tensor], *, group: Group) -> None:
    """Puts one group's weights into a trunk. They are copied, so that they own aligned memory.

    WireError unless names, shapes and float32 are exactly the trunk's: they come from a peer.
    """
    expected = trunk_state(trunk, group=group)
    if state.keys() != expected.keys():
        missing, unknown = (
            sorted(expected.keys() - state.keys()),
            sorted(state.keys() - expected.keys()),
        )
        raise WireError(
            f"the peer sent {len(state)} of the {len(expected)} {group} weights of this trunk; "
            f"missing {missing[:3]}, not ours {unknown[:3]}"
        )
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape or tensor.dtype != torch.float32:
            raise WireError(
                f"the peer sent {name} as {tensor.dtype} of shape {tuple(tensor.shape)}; this trunk "
                f"needs torch.float32 of shape {tuple(expected[name].shape)}"
            )
    for name, tensor in state.items():
        path, _, leaf = name.rpartition(".")
        owner = trunk.get_submodule(path)
        old = owner.get_parameter(leaf)
        new = tensor.detach().clone(memory_format=torch.contiguous_format)
        setattr(owner, leaf, nn.Parameter(new, requires_grad=old.requires_grad))


def load_layers_from_folder(folder: Path, *, model: TrunkModel, cut: CutSpec) -> dict[str, Tensor]:
    """Group "layers" of the trunk, read from a model folder: those tensors and no others.

    ManifestError if the folder has no safetensors weights, or not these ones in these shapes; a
    caller who only asks whether the folder will do compares digests and takes that for a no.
    """
    trunk = build_trunk(model, cut=cut)
    expected = trunk_state(trunk, group="layers")
    stored = _stored_names(folder)
    family = TRUNKS[model.model_type]
    found: dict[str, Tensor] = {}
    wanted: dict[Path, list[tuple[str, str]]] = {}
    for name in expected:
        tail = _in_folder(name, family=family, border=model.fields["layers"], crossed=trunk.crossed)
        key = _match(stored, tail)
        if key is None:
            raise ManifestError(
                f"model folder {folder} has no weights named ...{tail}; it is another model"
            )
        wanted.setdefault(stored[key], []).append((name, key))
    for file, names in wanted.items():
        try:
            with safe_open(file, framework="pt") as tensors:
                for name, key in names:
                    found[name] = tensors.get_tensor(key).float()
        except (OSError, SafetensorError) as error:
            raise ManifestError(f"{file} cannot be read as safetensors: {error}") from None
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape:
            raise ManifestError(
                f"model folder {folder} has {name} of shape {tuple(tensor.shape)}, "
                f"the job needs {tuple(expected[name].shape)}; it is another model"
            )
    return {name: found[name] for name in expected}


def _in_folder(name: str, *, family: Family, border: object, crossed: bool) -> str:
    """The name below the base model that a weight of a trunk's layers has; border: layers of its encoder.

    crossed: whether they are a decoder's.
    """
    if stands_still(name):
        within, _, _ = family.table.rpartition(".")
        layers = family.upper.layers if crossed and family.upper is not None else family.layers
        return f"{layers}.0.{within}.{name.removeprefix(_TABLE)}"
    _, number, rest = name.split(".", 2)
    if family.upper is not None and isinstance(border, int) and int(number) >= border:
        return f"{family.upper.layers}.{int(number) - border}.{rest}"
    return f"{family.layers}.{number}.{rest}"


def _stored_names(folder: Path) -> dict[str, Path]:
    """Every tensor name in a model folder, and the file that it is in."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            listing = msgspec.json.decode(index.read_bytes(), type=_Index)
            # Only the last part of a name: an index must not lead out of its folder.
            return {name: folder / Path(file).name for name, file in listing.weight_map.items()}
        file = folder / "model.safetensors"
        with safe_open(file, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), file)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise ManifestError(
            f"model folder {folder} has no readable safetensors weights: {error}"
        ) from None


def _match(stored: Mapping[str, Path], tail: str) -> str | None:
    """The stored name that ends in `tail`: bare, or below the base model's prefix, old or new spelling."""
    old = tail.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )
    names = [
        name
        for name in stored
        for ending in {tail, old}
        if name == ending
        or (name.endswith(f".{ending}") and name.count(".") == ending.count(".") + 1)
    ]
    return names[0] if len(names) == 1 else None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
