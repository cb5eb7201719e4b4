"""Reinforce-Ada inside NVIDIA NeMo-RL.

with reinforce_ada(master_config, checkpointer=checkpointer):
    grpo_train(...)
"""

from __future__ import annotations

from nemo_ada.nemo.hooks import StepDroppedError
from nemo_ada.nemo.install import reinforce_ada

__all__ = ["StepDroppedError", "reinforce_ada"]
