"""A device that every machine has: its tensors lie in this process's memory and say that they do not.

torch lets a backend be written in Python. Here each operator is the CPU's own on what a tensor holds, so
all numbers are the CPU's to the bit; but as on a GPU, an operator that is given tensors from both places
raises, only a copy takes one from here to there, and nothing else can read it. So a whole run shows, on
a machine without a GPU, whether a mask, a seed or a gradient was left behind.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"


class _Module:
    """What torch looks up as torch.elsewhere. Numbers are drawn by the CPU's generator."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(_: int) -> None:
        """The CPU's generator, which draws for this device, was seeded just before."""

    @staticmethod
    def get_rng_state(_: object = None) -> Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, _: object = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, _Module())
ELSEWHERE = torch.device(NAME, 0)


class Apart(Tensor):
    """A tensor there. held: its numbers, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Apart":
        made: Apart = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=ELSEWHERE,
            requires_grad=False,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Apart({self.held})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


# What copies from one place to the other.
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The operator on what the tensors hold, its results there: RuntimeError where some lie here."""
    given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    asked = kwargs.get("device")
    there = asked is not None and torch.device(asked).type == NAME
    if func not in _COPIES and any(isinstance(value, Apart) for value in given):
        # As on a GPU, a single number may come from the CPU.
        left = [v for v in given if not isinstance(v, Apart) and v.dim()]
        if left:
            raise RuntimeError(
                f"{func} of tensors on {ELSEWHERE} and of {[tuple(v.shape) for v in left]} on the CPU"
            )
    at_home = {**kwargs, **({"device": torch.device("cpu")} if there else {})}
    inner = tree_map(lambda v: v.held if isinstance(v, Apart) else v, (args, at_home))
    result = func(*inner[0], **inner[1])
    if func is torch.ops.aten._to_copy.default:
        stays = there or (asked is None and isinstance(args[0], Apart))
    elif func is torch.ops.aten.copy_.default:
        return args[0]
    else:
        stays = there or any(isinstance(value, Apart) for value in given)
    if not stays:
        return result
    result = tree_map(lambda v: Apart(v) if isinstance(v, Tensor) else v, result)
    return return_and_correct_aliasing(func, args, dict(kwargs), result)


_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")


def move(model: nn.Module) -> nn.Module:
    """The model there. Weights of two names stay one, as on every device that torch itself is built for."""
    twins: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        twins.setdefault(id(weight), []).append(name)
    model.to(ELSEWHERE)
    for first, *others in twins.values():
        for name in others:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, model.get_parameter(first))
    return model


_tensor = torch.tensor


def tensor(data: object, *, device: torch.device | None = None, **more: Any) -> Tensor:
    """In place of torch.tensor, which makes nothing on a device written in Python."""
    made = _tensor(data, **more)
    return made if device is None else made.to(device)


_Generator = torch.Generator


def generator(_: torch.device | None = None) -> torch.Generator:
    """In place of torch.Generator: the CPU's draws for this device."""
    return _Generator()
