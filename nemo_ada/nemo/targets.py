"""The names of NeMo-RL that are replaced while a run lasts, and what each must look like before anything is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nemo_ada.errors import UserError
from nemo_ada.nemo.access import get

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
ADVICE = (
    "this NeMo-RL is not one of v0.6.0, v0.7.0 or main of August 2026, which the hooks were tried on; v0.8.0 is not "
    "supported yet; use v0.7.0"
)
BASELINES, SCALE, SHAPE = "calculate_baseline_and_std_per_prompt", "scale_rewards", "apply_reward_shaping"
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
        if function is None:
            raise UserError(f"{here} does not exist: {ADVICE}")
        if function.__module__ != self.origin:
            raise UserError(
                f"{here} comes from {function.__module__} instead of {self.origin}: reinforce_ada is already active "
                "or another program replaced it; undo that first"
            )
        found = tuple(inspect.signature(function).parameters)[: len(self.parameters)]
        if found != self.parameters:
            raise UserError(
                f"{here} takes ({', '.join(found)}) first, expected ({', '.join(self.parameters)}): {ADVICE}"
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
        BASELINES,
        "nemo_rl.algorithms.utils",
        ("prompts", "rewards", "valid_mask", "leave_one_out_baseline"),
    ),
    Target(SCALE, LOOP, ("repeated_batch", "reward_scaling_cfg")),
    Target(SHAPE, "nemo_rl.algorithms.reward_functions", ("batch", "cfg")),
)
SAMPLE_ROLLOUT = Target("run_sample_multi_turn_rollout", ROLLOUTS, _SAMPLE)


def check_returns(module: Any, master_config: Any) -> None:
    """Call the originals that need no engine on a batch of two rows, as the loop does.

    Raises UserError when one returns something else than the hooks return in its place: a signature does not show that.
    """
    rewards_R = torch.tensor([1.0, 0.0])
    prompts_RT = torch.tensor([[5, 6], [5, 6]])
    baselines = getattr(module, BASELINES)
    found = _result(BASELINES, baselines, prompts_RT, rewards_R, torch.ones(2), leave_one_out_baseline=True)
    parts = found if isinstance(found, tuple) else (found,)
    if len(parts) != 2 or not all(torch.is_tensor(part) and part.shape == (2,) for part in parts):
        _refuse(BASELINES, "2 tensors (baselines and standard deviations) of shape (2,)", _described(found))
    for name, section in ((SCALE, "grpo.reward_scaling"), (SHAPE, "grpo.reward_shaping")):
        settings = get(master_config, section)
        if settings is None or (name == SHAPE and not get(settings, "enabled", False)):  # then the loop calls neither
            continue
        log = [{"role": "user", "content": "", "token_ids": torch.tensor([5, 6])},
               {"role": "assistant", "content": "", "token_ids": torch.tensor([7])}]  # fmt: skip
        batch = {"message_log": [log, log], "total_reward": rewards_R.clone(), "truncated": torch.zeros(2).bool()}
        found = _result(name, getattr(module, name), batch, settings)
        reward_R: Any = found.get("total_reward") if isinstance(found, Mapping) else None
        if not torch.is_tensor(reward_R) or reward_R.shape != (2,):
            _refuse(name, "the batch with total_reward, a tensor of shape (2,)", _described(found))


def _result(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise UserError(f"{name} fails on a batch of two rows ({type(error).__name__}: {error}): {ADVICE}") from error


def _refuse(name: str, expected: str, found: str) -> None:
    raise UserError(f"{name} of a batch of two rows returns {found}, expected {expected}: {ADVICE}")


def _described(value: Any) -> str:
    """Such as `3 values (tensor (2,), tensor (2,), tensor (2,))`."""
    if isinstance(value, tuple):
        return f"{len(value)} values ({', '.join(_described(part) for part in value)})"
    if torch.is_tensor(value):
        return f"tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a batch of {', '.join(map(str, value))}"
    return type(value).__name__


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
