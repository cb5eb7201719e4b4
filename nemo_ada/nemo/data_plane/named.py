"""Reinforce-Ada as parts that a YAML names, for a NeMo-RL with the extension points of recipes/upstream.

    grpo:
      rollout_target: nemo_ada.nemo.data_plane.named:RolloutActor
      rollout_columns: [ada_uid, ada_advantage, ada_weight, ada_reward, ada_baseline, ada_std, ada_saved]
      adv_estimator: {name: grpo, target: "nemo_ada.nemo.data_plane.named:Estimator"}

No name of NeMo-RL is replaced. The state of the sampler is not in checkpoints yet: that needs a third point.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.advantage import AdaAdvantageEstimator
from nemo_ada.nemo.data_plane.actor import AdaRolloutActor


class RolloutActor(AdaRolloutActor):
    """NeMo-RL's rollout actor, whose method asks it for the function that draws."""

    def rollout_function(self, runner: Callable[..., Any]) -> Callable[..., Any]:
        """Return what draws in place of one of NeMo-RL's rollout functions."""
        return self._ada.replacements()[runner.__name__]

    def _drawing(self) -> AbstractContextManager[None]:
        return nullcontext()


class Estimator(AdaAdvantageEstimator):
    """The estimator, made from NeMo-RL's configuration."""

    def __init__(self, master_config: Any) -> None:
        super().__init__(nemo_settings.read(master_config))
