"""Run Megatron-core (0.16 to 0.19) on a machine without a GPU.

Megatron-core names the cuda device in its source. It calls `torch.zeros(..., device="cuda")` and
`torch.cuda.current_device()`, and checks that `Tensor.type()` is "torch.cuda.FloatTensor". This module gives Megatron's
own modules another `torch`, a copy of the name space in which those names mean the CPU. Other modules have the real
`torch`.

Nothing happens on import. A learner process calls `install()` once, after it has imported Megatron. Within the block of
`pretend_cuda_methods()` the two tensor methods that Megatron calls are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn")
_NOTHING = ("synchronize", "empty_cache", "manual_seed", "set_device", "current_stream")
_CPU = torch.device("cpu")


class _Overlay(ModuleType):
    """A copy of a module with some names replaced. Lazy attributes come from the original."""

    def __init__(self, original: ModuleType, replaced: dict[str, Any]) -> None:
        super().__init__(original.__name__)
        self.__dict__.update({**vars(original), **replaced})
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


def _move_to_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the factory with every device replaced by the CPU."""

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is not None:
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return make


def _do_nothing(*_args: Any, **_kwargs: Any) -> None:
    """Replace a call that has no meaning without a GPU, such as to synchronise or to free its cache."""


def install() -> int:
    """Give the CPU's `torch` to every loaded module of Megatron. Returns how many have changed, and 0 when repeated."""
    cuda: dict[str, Any] = dict.fromkeys(_NOTHING, _do_nothing)
    cuda["current_device"] = lambda: _CPU
    cpu_torch = _Overlay(
        torch, {"cuda": _Overlay(torch.cuda, cuda)} | {f: _move_to_cpu(getattr(torch, f)) for f in _FACTORIES}
    )
    changed = 0
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "megatron" and module.__dict__.get("torch") is torch:
            module.__dict__["torch"] = cpu_torch
            changed += 1
    return changed


@contextmanager
def pretend_cuda_methods() -> Iterator[None]:
    """Within the block `Tensor.cuda()` returns the tensor, and `Tensor.type()` the name that Megatron expects."""
    real_type, real_cuda = torch.Tensor.type, torch.Tensor.cuda

    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = real_type(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    torch.Tensor.type = named
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    try:
        yield
    finally:
        torch.Tensor.type, torch.Tensor.cuda = real_type, real_cuda
