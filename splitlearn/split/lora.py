"""Low-rank adapters (LoRA) in a model's blocks, by peft: put in, drawn, taken out, exported.

Adapters stand beside frozen linear layers: B A x, scaled by alpha over rank. B is zero at first and A
is drawn from raw PCG64 bits, whose stream numpy keeps for ever, by a seed and the weight's name: every
party and the unsplit model draw the same numbers on any machine, and nobody has to send them.
"""

# D width, R rank

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.cut import Cut
from splitlearn.split.stage import RemoteStage, slots_of
from splitlearn.split.trunk import Trunk
from splitlearn.wire.messages import LoraSpec

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

__all__ = [
    "Where",
    "adapt",
    "adapters_only",
    "blocks_of",
    "check_targets",
    "fold",
    "load_trained",
    "save_adapters",
    "targets_in",
    "trained_state",
    "trunk_blocks",
]

Where = Literal["trunk", "all"]
# What peft puts an adapter beside; GPT-2's Conv1D is a linear layer whose weight is laid the other way.
_LINEAR = (nn.Linear, Conv1D)
# peft's name for the one set of adapters that there is.
_NAME = "default"
_MARK = ".lora_"


def targets_in(block: nn.Module, *, which: Literal["attention", "all"]) -> tuple[str, ...]:
    """Dotted names of a block's linear layers, in order: those of its attention, or all.

    ManifestError where there are none.
    """
    names = tuple(
        name
        for name, module in block.named_modules()
        if isinstance(module, _LINEAR) and (which == "all" or "att" in name.lower())
    )
    if not names:
        raise ManifestError(
            f"this model's blocks have no linear layers that [cut.lora] targets = {which!r} means; "
            'take "all", or mode "full"'
        )
    return names


def check_targets(trunk: Trunk, spec: LoraSpec) -> None:
    """WireError unless every target is a linear layer in each whole block: they come from a peer."""
    for index, block in trunk_blocks(trunk).items():
        found = dict(block.named_modules())
        for target in spec.targets:
            if not isinstance(found.get(target), _LINEAR):
                raise WireError(
                    f"the peer wants an adapter at {target} of layer {index}; there is no such linear "
                    "layer in a block of this model"
                )


def trunk_blocks(trunk: Trunk) -> dict[int, nn.Module]:
    """A trunk's whole blocks by their number in the model."""
    return {int(name): block for name, block in trunk.layers.items()}


def blocks_of(
    model: PreTrainedModel, *, cut: Cut, where: Where, train_bottom: bool
) -> dict[int, nn.Module]:
    """The whole blocks of a factored model, or of the local part of a split one, that get adapters.

    "trunk": those of the trunk, as far as they are here; "all": those of the top too, and of the
    bottom where it trains. A block that a cut runs through gets none.
    """
    slots = slots_of(model, cut=cut)
    blocks = {i: block for i, block in slots.layers.items() if not isinstance(block, RemoteStage)}
    if where == "all":
        above = slots.top[cut.upper.method != "none" :]
        blocks |= dict(enumerate(above, cut.last))
        if train_bottom:
            below = slots.bottom[: len(slots.bottom) - (cut.lower.method != "none")]
            blocks |= dict(enumerate(below))
    return blocks


def adapt(blocks: Mapping[int, nn.Module], spec: LoraSpec) -> None:
    """Put fresh adapters beside the targets of these blocks, which are changed and have weights.

    blocks: by number in the model; the draws depend on it. Only adapters train in them then.
    """
    if not blocks:
        return
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - seconds, for one mode

    whole = nn.ModuleDict({str(index): block for index, block in blocks.items()})
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=cast(int, spec.alpha),  # a float will do, peft's own type says less
        lora_dropout=spec.dropout,
        target_modules=[f"{index}.{target}" for index in blocks for target in spec.targets],
        fan_in_fan_out=_lies_across(whole, spec.targets),
        bias="none",
    )
    # On the meta device, so that nothing is drawn from torch's one generator. peft's own way there patches
    # nn.Module for all threads, of which another may be loading a trunk.
    with torch.device("meta"):
        inject_adapter_in_model(config, whole)
    for name, weight in list(whole.named_parameters()):
        if _MARK in name:
            owner, _, leaf = name.rpartition(".")
            drawn = _drawn(weight, name=name, seed=spec.seed)
            setattr(whole.get_submodule(owner), leaf, nn.Parameter(drawn))


def adapters_only(block: nn.Module) -> bool:
    """Lets nothing train in a block but its adapters; False, and nothing done, if it has none."""
    names = dict(block.named_parameters())
    if not any(_MARK in name for name in names):
        return False
    for name, weight in names.items():
        weight.requires_grad_(_MARK in name)
    return True


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """The weights that train, by name: the module's own memory, detached."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def load_trained(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copies into a module what `trained_state` gave of its like. WireError for other names or shapes."""
    wanted = trained_state(module)
    if {n: t.shape for n, t in wanted.items()} != {n: t.shape for n, t in state.items()}:
        raise WireError(
            f"{len(state)} trained weights came back, and {len(wanted)} of other names or shapes were "
            "expected; the run folder is another job's"
        )
    for name, tensor in wanted.items():
        tensor.copy_(state[name])


def fold(model: nn.Module) -> None:
    """Adds every adapter to the linear layer that it stands beside, and takes it out.

    The model is an ordinary one then; its sums are rounded elsewhere, so logits differ in last bits.
    """
    for name, layer in _adapted(model).items():
        layer.merge()
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer.get_base_layer())


def save_adapters(folder: Path, *, model: nn.Module, spec: LoraSpec, base: str | None) -> None:
    """Writes what trained in a whole model as peft's own format: adapter_config.json and weights.

    `peft.PeftModel.from_pretrained(base model, folder)` gives the model's logits. What trained
    whole, such as the head, is in `modules_to_save`. base: the base model's name, where it is a public one.
    ManifestError if the folder cannot be written.
    """
    from peft import LoraConfig  # noqa: PLC0415 - as above

    whole = _trained_modules(model)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=cast(int, spec.alpha),
        lora_dropout=spec.dropout,
        target_modules=sorted(_adapted(model)),
        modules_to_save=whole or None,
        fan_in_fan_out=_lies_across(model, spec.targets),
        bias="none",
        inference_mode=True,
        base_model_name_or_path=base,
    )
    state = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": p.detach().contiguous()
        for name, p in model.named_parameters()
        if _MARK in name or any(name.startswith(f"{saved}.") for saved in whole)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(str(folder))
        save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"adapters cannot be written to {folder}: {error}") from None


def _drawn(weight: Tensor, *, name: str, seed: int) -> Tensor:
    """An adapter's first values: zeros for B, uniform within 1 over the root of D for A, (R, D)."""
    if ".lora_B." in name:
        return torch.zeros(weight.shape)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    raw = np.random.PCG64(int.from_bytes(digest[:16], "big")).random_raw(weight.numel())
    # 24 bits fill a float32 exactly: from -1 up to, and without, 1.
    uniform = ((raw >> 40).astype(np.int64) - 2**23).astype(np.float32) * np.float32(2.0**-23)
    bound = np.float32(1 / math.sqrt(weight.shape[1]))
    return torch.from_numpy(uniform * bound).reshape(weight.shape).clone()


def _lies_across(module: nn.Module, targets: Sequence[str]) -> bool:
    """Whether the weights that get adapters are (columns in, columns out): peft asks for one answer."""
    ends = tuple(f".{target}" for target in targets)
    return any(
        isinstance(found, Conv1D) or isinstance(getattr(found, "base_layer", None), Conv1D)
        for name, found in module.named_modules()
        if name.endswith(ends)
    )


def _adapted(model: nn.Module) -> "dict[str, Linear]":
    """The linear layers that have an adapter, by name."""
    names = {name.partition(_MARK)[0] for name, _ in model.named_parameters() if _MARK in name}
    return {name: cast("Linear", model.get_submodule(name)) for name in sorted(names)}


def _trained_modules(model: nn.Module, *, below: str = "") -> list[str]:
    """The largest modules in which everything trains and nothing is an adapter."""
    found: list[str] = []
    for name, child in model.named_children():
        path = f"{below}{name}"
        if _MARK in f".{name}":
            continue
        weights = list(child.parameters())
        if not all(p.requires_grad for p in weights) or isinstance(child, nn.ModuleList):
            found += _trained_modules(child, below=f"{path}.")
        elif weights:
            found.append(path)
    return found
