"""The rollout actor of the trainer with a data plane, with Reinforce-Ada in its process.

NeMo-RL's actor draws, flattens the rows, writes them into the data plane and hands a few columns to the driver. Here it
draws with our hooks, and the driver also gets the columns of `training_batch.build_batch`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from nemo_rl.experience.sync_rollout_actor import SyncRolloutActor

from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.hooks import Hooks
from nemo_ada.nemo.launch.lost import raise_lost_process
from nemo_ada.nemo.patch_points import replace_names
from nemo_ada.nemo.training_batch import COLUMNS
from nemo_ada.rules.facts.upstream import (
    GYM_ROLLOUT,
    GYM_SYNC,
    LOOP,
    PATCH_POINTS,
    ROLLOUT_ACTOR,
    ROLLOUTS,
    SAMPLE_ROLLOUT,
)

PLAIN: Any = SyncRolloutActor.__ray_metadata__.modified_class.__ray_actor_class__
"""NeMo-RL's class behind Ray's."""


class AdaRolloutActor(PLAIN):  # type: ignore[misc]
    """NeMo-RL's rollout actor that draws with Reinforce-Ada."""

    def __init__(self, *args: Any, ada_state: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Start NeMo-RL's actor, and the sampler of the run.

        Args:
            args: arguments of NeMo-RL's actor.
            ada_state: state of the sampler in a checkpoint, to continue from.
            kwargs: named arguments of NeMo-RL's actor.
        """
        super().__init__(*args, **kwargs)
        self._ada_wish: Literal["drain", "drop"] | None = None
        config = vars(self)["master_config"]
        settings = nemo_settings.read(config)
        loop, rollouts = importlib.import_module(LOOP), importlib.import_module(ROLLOUTS)
        originals = {target.name: getattr(loop, target.name) for target in PATCH_POINTS}
        originals[SAMPLE_ROLLOUT.name] = getattr(rollouts, SAMPLE_ROLLOUT.name)
        if settings.gym:
            originals |= {
                target.name: getattr(rollouts, target.name)
                for target in (GYM_ROLLOUT, GYM_SYNC)
                if hasattr(rollouts, target.name)
            }
        self._ada = Hooks(config, settings, originals, lambda: self._ada_wish)
        if ada_state is not None:
            self._ada.load_state_dict(ada_state)

    def rollout_to_tq(self, input_batch: Any, *, task_to_env_override: Any = None, **arguments: Any) -> Any:
        """Draw a step, or a batch of a validation, which names its environments.

        Args:
            input_batch: prompts, each as often as rows are kept.
            task_to_env_override: environments of a validation. None in training.
            arguments: other arguments of NeMo-RL's method.

        Returns:
            What NeMo-RL's method returns. In training the columns for the driver have ours, too.

        Raises:
            StepDroppedError: the job nears its end.
            ProcessLostError: a process has died, such as an engine.
        """
        self._ada_wish = None
        with raise_lost_process(), self._drawing(), self._ada.validation(task_to_env_override is not None):
            result = super().rollout_to_tq(input_batch, task_to_env_override=task_to_env_override, **arguments)
        if task_to_env_override is None:
            carry, batch = result[1], self._ada.current
            carry.update({name: batch[name] for name in COLUMNS})
        return result

    def _drawing(self) -> AbstractContextManager[None]:
        """Return a block in which NeMo-RL's method draws with our hooks."""
        module = importlib.import_module(ROLLOUT_ACTOR.rpartition(".")[0])
        ours = {name: hook for name, hook in self._ada.replacements().items() if hasattr(module, name)}
        return replace_names(module, ours)

    def ada_stop(self, wish: Literal["drain", "drop"]) -> None:
        """Issue no new wave in the call that runs, or give it up. Ray runs this beside the rollout."""
        self._ada_wish = wish

    def ada_report(self) -> dict[str, Any]:
        """Return what the driver wants to know after a call."""
        return self._ada.report()

    def ada_state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler for a checkpoint."""
        return self._ada.state_dict()

    def ada_load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state, when a step was given up."""
        self._ada.load_state_dict(state)
