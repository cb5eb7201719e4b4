"""The functions of NeMo-RL that a run replaces. Each is checked before anything changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nemo_ada.errors import UserError
from nemo_ada.nemo import trivial_groups
from nemo_ada.nemo.lookup import get

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
    "the hooks were tried on NeMo-RL v0.7.0, main of August 2026, and with the known changes of v0.8.0; use v0.7.0, "
    "and see with `nemo-ada contract OLD NEW` what differs in this one"
)
BASELINES, SCALE, SHAPE = "calculate_baseline_and_std_per_prompt", "scale_rewards", "apply_reward_shaping"
_SAMPLE = ("sample_idx", "initial_sample_state", "policy_generation", "tokenizer", "task_to_env", "max_seq_len")


@dataclass(frozen=True, slots=True)
class PatchPoint:
    """A function in the loop's module that the hooks replace.

    Attributes:
        name: Name of the function.
        origin: Module that defines it.
        parameters: Names of its first parameters.
    """

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
        actual = tuple(inspect.signature(function).parameters)[: len(self.parameters)]
        if actual != self.parameters:
            raise UserError(
                f"{here} takes ({', '.join(actual)}) first, expected ({', '.join(self.parameters)}): {ADVICE}"
            )


PATCH_POINTS = (
    PatchPoint("run_multi_turn_rollout", ROLLOUTS, _ROLLOUT),
    PatchPoint("run_async_multi_turn_rollout", ROLLOUTS, _ROLLOUT),
    PatchPoint(
        "validate",
        LOOP,
        ("policy_generation", "val_dataloader", "tokenizer", "val_task_to_env", "step", "master_config", "logger"),
    ),
    PatchPoint("_create_advantage_estimator", LOOP, ("master_config",)),
    PatchPoint(
        BASELINES,
        "nemo_rl.algorithms.utils",
        ("prompts", "rewards", "valid_mask", "leave_one_out_baseline"),
    ),
    PatchPoint(SCALE, LOOP, ("repeated_batch", "reward_scaling_cfg")),
    PatchPoint(SHAPE, "nemo_rl.algorithms.reward_functions", ("batch", "cfg")),
)
SAMPLE_ROLLOUT = PatchPoint("run_sample_multi_turn_rollout", ROLLOUTS, _SAMPLE)
_GYM = ("policy_generation", "input_batch", "tokenizer", "task_to_env", "generation_config")
GYM_ROLLOUT = PatchPoint("run_async_nemo_gym_rollout", ROLLOUTS, _GYM)
"""NeMo-Gym's rollout. v0.7.0's loop calls it. On main it is an asynchronous generator, and the loop calls GYM_SYNC."""
GYM_SYNC = PatchPoint("run_nemo_gym_rollout_sync", ROLLOUTS, _GYM)


def gym_point(loop: Any) -> PatchPoint:
    """The function of the loop's module that draws responses over NeMo-Gym."""
    return GYM_SYNC if hasattr(loop, GYM_SYNC.name) else GYM_ROLLOUT


def check_returns(module: Any, master_config: Any) -> bool:
    """Call the originals that need no engine on a batch of two rows, as the loop does.

    A signature does not show what a function returns. R rows of T tokens.

    Args:
        module: The loop's module.
        master_config: NeMo-RL's configuration.

    Returns:
        Whether the baselines have a third value (trivial_groups.py).

    Raises:
        UserError: A function returns something else than the hook that replaces it.
    """
    rewards_R = torch.tensor([1.0, 0.0])
    prompts_RT = torch.tensor([[5, 6], [5, 6]])
    baselines = getattr(module, BASELINES)
    result = _result(BASELINES, baselines, prompts_RT, rewards_R, torch.ones(2), leave_one_out_baseline=True)
    marks = trivial_groups.marked(result)
    if marks is None:
        _refuse(BASELINES, trivial_groups.MOMENTS, result)
    if hasattr(module, trivial_groups.NAME):
        decide = getattr(module, trivial_groups.NAME)
        result = _result(trivial_groups.NAME, decide, prompts_RT, rewards_R, torch.ones(2))
        if not torch.is_tensor(result) or result.shape != (2,) or result.dtype != torch.bool:
            _refuse(trivial_groups.NAME, "a tensor of truth values of shape (2,)", result)
    for name, section in ((SCALE, "grpo.reward_scaling"), (SHAPE, "grpo.reward_shaping")):
        settings = get(master_config, section)
        if settings is None or (name == SHAPE and not get(settings, "enabled", False)):  # the loop does not call it
            continue
        log = [{"role": "user", "content": "", "token_ids": torch.tensor([5, 6])},
               {"role": "assistant", "content": "", "token_ids": torch.tensor([7])}]  # fmt: skip
        batch = {"message_log": [log, log], "total_reward": rewards_R.clone(), "truncated": torch.zeros(2).bool()}
        result = _result(name, getattr(module, name), batch, settings)
        reward_R: Any = result.get("total_reward") if isinstance(result, Mapping) else None
        if not torch.is_tensor(reward_R) or reward_R.shape != (2,):
            _refuse(name, "the batch with total_reward, a tensor of shape (2,)", result)
    return bool(marks)


def _result(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function. Raises UserError for whatever it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise UserError(f"{name} fails on a batch of two rows ({type(error).__name__}: {error}): {ADVICE}") from error


def _refuse(name: str, expected: str, result: Any) -> None:
    """Raise UserError for a function that returned something else than expected."""
    raise UserError(f"{name} of a batch of two rows returns {_described(result)}, expected {expected}: {ADVICE}")


def _described(value: Any) -> str:
    """A value's type for people, such as `3 values (tensor (2,), tensor (2,), tensor (2,))`."""
    if isinstance(value, tuple):
        return f"{len(value)} values ({', '.join(_described(part) for part in value)})"
    if torch.is_tensor(value):
        return f"tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a batch of {', '.join(map(str, value))}"
    return type(value).__name__


@contextmanager
def replaced(module: Any, replacements: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace names of a module within the block. The originals come back, whatever ends the block."""
    originals = {name: getattr(module, name) for name in replacements}
    try:
        for name, function in replacements.items():
            setattr(module, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(module, name, function)
