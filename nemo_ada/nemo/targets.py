"""The names of NeMo-RL that are replaced while a run lasts, and what each must look like before anything is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nemo_ada.errors import UserError

LOOP = "nemo_rl.algorithms.grpo"
ROLLOUTS = "nemo_rl.experience.rollouts"
_ROLLOUT = (
    "policy_generation",
    "input_batch",
    "tokenizer",
    "task_to_env",
    "max_seq_len",
    "max_rollout_turns",
    "greedy",
)
_SAMPLE = ("sample_idx", "initial_sample_state", "policy_generation", "tokenizer", "task_to_env", "max_seq_len")


@dataclass(frozen=True, slots=True)
class Target:
    """A function in the loop's module: where it must come from and what its first parameters are."""

    name: str
    origin: str
    parameters: tuple[str, ...]

    def check(self, module: Any) -> None:
        """Raise UserError when the function is missing, is not the original, or takes other arguments."""
        function = getattr(module, self.name, None)
        here = f"{module.__name__}.{self.name}"
        advice = "this NeMo-RL is not one of v0.6.0, v0.7.0 or main of August 2026, which the hooks were tried on"
        if function is None:
            raise UserError(f"{here} does not exist: {advice}")
        if function.__module__ != self.origin:
            raise UserError(
                f"{here} comes from {function.__module__} instead of {self.origin}: reinforce_ada is already active "
                "or another program replaced it; undo that first"
            )
        found = tuple(inspect.signature(function).parameters)[: len(self.parameters)]
        if found != self.parameters:
            raise UserError(
                f"{here} takes ({', '.join(found)}) first, expected ({', '.join(self.parameters)}): {advice}"
            )


TARGETS = (
    Target("run_multi_turn_rollout", ROLLOUTS, _ROLLOUT),
    Target("run_async_multi_turn_rollout", ROLLOUTS, _ROLLOUT),
    Target(
        "validate",
        LOOP,
        ("policy_generation", "val_dataloader", "tokenizer", "val_task_to_env", "step", "master_config", "logger"),
    ),
    Target("_create_advantage_estimator", LOOP, ("master_config",)),
    Target(
        "calculate_baseline_and_std_per_prompt",
        "nemo_rl.algorithms.utils",
        ("prompts", "rewards", "valid_mask", "leave_one_out_baseline"),
    ),
    Target("scale_rewards", LOOP, ("repeated_batch", "reward_scaling_cfg")),
    Target("apply_reward_shaping", "nemo_rl.algorithms.reward_functions", ("batch", "cfg")),
)
SAMPLE_ROLLOUT = Target("run_sample_multi_turn_rollout", ROLLOUTS, _SAMPLE)


@contextmanager
def replaced(module: Any, replacements: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Set names of a module for the block and put the originals back, whatever ends it."""
    originals = {name: getattr(module, name) for name in replacements}
    try:
        for name, function in replacements.items():
            setattr(module, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(module, name, function)
