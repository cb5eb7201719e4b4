"""The driver's side of Reinforce-Ada in the trainer with a data plane.

`grpo_train_sync` stays as it is. The sampler lives in the rollout actor (actor.py). Here names of the loop's module are
replaced, as in install.py:

- `SyncRolloutActor`: our subclass, behind a stand-in that watches the job's end while it draws
- `scale_rewards`, `apply_reward_shaping`: the rollout has done both on whole pools
- `calculate_baseline_and_std_per_prompt`: mean and standard deviation of the pools
- `get_gdpo_reward_component_keys`: only the columns that it names reach the advantage estimator
- `_create_advantage_estimator`, `validate_sync`, `print_performance_metrics`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import ray

from nemo_ada.core.sampling.schedulers import StopCheck
from nemo_ada.nemo.data_plane.actor import AdaRolloutActor
from nemo_ada.nemo.hooks import PERFORMANCE, Hooks, leave_rewards
from nemo_ada.nemo.launch.checkpoint import restore_state, save_state_with_checkpoints
from nemo_ada.nemo.loop_log import correct_logger
from nemo_ada.nemo.patch_points import replace_names
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import COLUMNS
from nemo_ada.rules.facts.upstream import (
    BASELINES,
    COMPONENTS,
    DATA_PLANE_POINTS,
    ROLLOUT_ACTOR,
    SCALE,
    SHAPE,
    SYNC_LOOP,
)

ASK_SECONDS = 0.5  # between two questions to the job while the actor draws
ACTOR = ROLLOUT_ACTOR.rpartition(".")[2]
VALIDATE = "validate_sync"


class DataPlaneHooks(Hooks):
    """The hooks of the driver. Their sampler draws nothing: its state is the actor's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actor: Any = None
        self._state: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the actor's sampler for a checkpoint."""
        if self.actor is None:
            return super().state_dict() if self._state is None else dict(self._state)
        state: dict[str, Any] = ray.get(self.actor.ada_state_dict.remote())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, or from the last step where one was given up."""
        self._state = state
        self.rollout_calls = int(state["draws"])
        if self.actor is not None:
            ray.get(self.actor.ada_load_state_dict.remote(state))

    def start(self, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Start the actor with the state of the newest checkpoint. A second thread lets it hear of a stop."""
        actor = ray.remote(max_concurrency=2)(AdaRolloutActor).options(**options)
        self.actor = actor.remote(ada_state=self._state, **arguments)

    def draw(self, *args: Any, **arguments: Any) -> Any:
        """Draw in the actor, and ask meanwhile whether the job ends. Returns Ray's reference to the finished result."""
        validates = arguments.get("task_to_env_override") is not None
        answer, told = self.actor.rollout_to_tq.remote(*args, **arguments), None
        while not ray.wait([answer], timeout=ASK_SECONDS)[0]:
            wish = self._stop_check() if self._stop_check is not None and not validates else None
            if validates:
                self.on_wait()
            if wish is not None and wish != told:
                self.actor.ada_stop.remote(wish)
                told = wish
        self.take(ray.get(self.actor.ada_report.remote()))
        return answer

    def replacements(self) -> dict[str, Callable[..., Any]]:
        """Name in grpo_sync -> what replaces it."""
        ours: dict[str, Any] = {
            ACTOR: StandIn(self),
            VALIDATE: self._validate,
            "_create_advantage_estimator": self._create_estimator,
            BASELINES: self._get_baseline_and_std,
            COMPONENTS: self._choose_columns,
            SCALE: self._note_batch,
            SHAPE: leave_rewards,
        }
        return ours | ({PERFORMANCE: self._hand_out_counts} if PERFORMANCE in self._originals else {})

    def _note_batch(self, carry: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave the rewards alone, because the rollout has scaled those of whole pools. The loop calls this first."""
        self.current = carry
        return carry

    def _choose_columns(self, batch: Any) -> list[str]:
        """Return the columns that the estimator gets: ours."""
        return [name for name in COLUMNS if name in batch]

    def _hand_out_counts(self, train_results: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's throughputs. The loop logs its metrics next, and they get what the estimator has counted."""
        metrics.update(self._estimator.counted if self.settings.dynamic else {})
        return self._correct_performance(train_results, metrics, *args, **kwargs)


class StandIn:
    """What the loop takes for NeMo-RL's actor class, and then for the actor."""

    def __init__(self, hooks: DataPlaneHooks) -> None:
        self._hooks = hooks
        self._options: dict[str, Any] = {}
        self.rollout_to_tq = SimpleNamespace(remote=hooks.draw)

    def options(self, **options: Any) -> StandIn:
        """Take the options of the actor."""
        self._options = options
        return self

    def remote(self, **arguments: Any) -> StandIn:
        """Start the actor."""
        self._hooks.start(self._options, arguments)
        return self


@contextmanager
def install_hooks(
    master_config: Any, checkpointer: Any, settings: NemoSettings, stop_check: StopCheck | None
) -> Iterator[DataPlaneHooks]:
    """Within the block grpo_train_sync trains with Reinforce-Ada. `install.reinforce_ada` explains the arguments."""
    loop = importlib.import_module(SYNC_LOOP)
    originals = {target.name: getattr(loop, target.name) for target in DATA_PLANE_POINTS}
    originals["validate"] = originals.pop(VALIDATE)
    if hasattr(loop, PERFORMANCE):
        originals[PERFORMANCE] = getattr(loop, PERFORMANCE)
    hooks = DataPlaneHooks(master_config, settings, originals, stop_check)
    state = restore_state(checkpointer)
    if state is not None:
        hooks.load_state_dict(state)
    with ExitStack() as stack:
        stack.enter_context(save_state_with_checkpoints(checkpointer, hooks.state_dict))
        stack.enter_context(correct_logger(loop.Logger, batches=True))
        stack.enter_context(replace_names(loop, hooks.replacements()))
        yield hooks
