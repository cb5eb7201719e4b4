"""Checks of the imported NeMo-RL before anything changes, and the replacing of its names (rules/facts/upstream.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.nemo import trivial_groups
from nemo_ada.rules.facts.upstream import ADVICE, BASELINES, REWARD_SECTIONS, SHAPE


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
    result = _call(BASELINES, baselines, prompts_RT, rewards_R, torch.ones(2), leave_one_out_baseline=True)
    marks = trivial_groups.has_third_value(result)
    if marks is None:
        _refuse(BASELINES, trivial_groups.MOMENTS, result)
    if hasattr(module, trivial_groups.NAME):
        decide = getattr(module, trivial_groups.NAME)
        result = _call(trivial_groups.NAME, decide, prompts_RT, rewards_R, torch.ones(2))
        if not torch.is_tensor(result) or result.shape != (2,) or result.dtype != torch.bool:
            _refuse(trivial_groups.NAME, "a tensor of truth values of shape (2,)", result)
    values = Values(master_config)
    for name, section in REWARD_SECTIONS.items():
        settings = values.get(section)
        if settings is None or (name == SHAPE and not values.get(f"{section}.enabled", False)):
            continue  # the loop does not call it
        log = [{"role": "user", "content": "", "token_ids": torch.tensor([5, 6])},
               {"role": "assistant", "content": "", "token_ids": torch.tensor([7])}]  # fmt: skip
        batch = {"message_log": [log, log], "total_reward": rewards_R.clone(), "truncated": torch.zeros(2).bool()}
        result = _call(name, getattr(module, name), batch, settings)
        reward_R: Any = result.get("total_reward") if isinstance(result, Mapping) else None
        if not torch.is_tensor(reward_R) or reward_R.shape != (2,):
            _refuse(name, "the batch with total_reward, a tensor of shape (2,)", result)
    return bool(marks)


def _call(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function. Raises UserError for whatever it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise UserError(f"{name} fails on a batch of two rows ({type(error).__name__}: {error}): {ADVICE}") from error


def _refuse(name: str, expected: str, result: Any) -> None:
    """Raise UserError for a function that returned something else than expected."""
    raise UserError(f"{name} of a batch of two rows returns {_describe(result)}, expected {expected}: {ADVICE}")


def _describe(value: Any) -> str:
    """Return a value's type for people, such as `3 values (tensor (2,), tensor (2,), tensor (2,))`."""
    if isinstance(value, tuple):
        return f"{len(value)} values ({', '.join(_describe(part) for part in value)})"
    if torch.is_tensor(value):
        return f"tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a batch of {', '.join(map(str, value))}"
    return type(value).__name__


@contextmanager
def replace_names(module: Any, replacements: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace names of a module within the block. The originals come back, whatever ends the block."""
    originals = {name: getattr(module, name) for name in replacements}
    try:
        for name, function in replacements.items():
            setattr(module, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(module, name, function)
