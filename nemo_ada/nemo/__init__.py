"""Reinforce-Ada inside NVIDIA NeMo-RL.

with reinforce_ada(master_config, checkpointer=checkpointer):
    grpo_train(...)

The names are imported on first use: the settings beside them must be readable where no torch is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_ada.nemo.hooks import StepDroppedError
    from nemo_ada.nemo.install import check_config, reinforce_ada

_HOMES = {"StepDroppedError": "hooks", "check_config": "install", "reinforce_ada": "install"}
__all__ = ["StepDroppedError", "check_config", "reinforce_ada"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
