"""Reinforce-Ada inside NVIDIA NeMo-RL.

with reinforce_ada(master_config, checkpointer=checkpointer):
    grpo_train(...)

The names are imported when they are first used: `nemo-ada check` reads the settings of this package on machines that
have no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_ada.nemo.hooks import StepDroppedError
    from nemo_ada.nemo.install import reinforce_ada

__all__ = ["StepDroppedError", "reinforce_ada"]
MODULES = {"StepDroppedError": "hooks", "reinforce_ada": "install"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)
