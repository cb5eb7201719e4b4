"""Megatron-Bridge without Transformer Engine (TE). Its model providers take megatron-core's local layers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("Megatron-Bridge's TE layer specs", "its local layer specs")


@REPLACEMENTS.after(
    "megatron.bridge.models.gpt_provider",
    "transformer_engine_layer_spec",
    why="The default spec names TE's layers; the local spec has the same parameters with separate norms.",
)
def _use_local_layers(names: Names) -> None:
    names.put("transformer_engine_layer_spec", names.module.local_layer_spec)


class _AnyClass(ModuleType):
    """A module that creates every class and submodule on first access."""

    __path__: list[str] = []  # noqa: RUF012 - a package without files

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        import torch

        value = type(name, (torch.nn.Module,), {}) if name[0].isupper() else _AnyClass(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


@contextmanager
def _make_te_importable() -> Iterator[None]:
    """Within the block transformer_engine can be imported. megatron-core has found it absent before."""
    import megatron.core.extensions.transformer_engine
    import megatron.core.optimizer  # noqa: F401

    names = ("transformer_engine", "transformer_engine.pytorch")
    root = _AnyClass(names[0])
    sys.modules.update({names[0]: root, names[1]: root.pytorch})
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


for _module in ("megatron.bridge.peft.lora_layers", "megatron.bridge.peft.lora"):
    REPLACEMENTS.during(
        _module, why="Two of its LoRA layers subclass TE's at import. The others run as they are, on the local layers."
    )(_make_te_importable)


@REPLACEMENTS.after(
    "megatron.bridge.peft.utils",
    "HAVE_TE",
    why="Without TE some of its layers are None in megatron-core, and LoRA compares each layer's class with them.",
)
def _use_lora_without_te(names: Names) -> None:
    names.put("HAVE_TE", False)
