"""The user's reward: a function that a YAML file names, for the prompts of a JSONL file."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import cast

from nemo_ada.errors import UserError
from nemo_ada.verify.verdict import INVALID, Verdict

Reward = Callable[[str, str], float]
"""Takes a response's text and the file's answer. Returns 0.0 or 1.0. It runs in this process, so it must be fast."""


def load_reward(name: str) -> Reward:
    """Import the function `package.module:function`. Raises UserError that says what is missing."""
    module_name, colon, function = name.partition(":")
    if not (module_name and colon and function):
        raise UserError(f"task.reward={name!r} must be package.module:function, for example my_rewards:exact")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(
            f"task.reward={name!r}: {module_name} is Python's own, and its functions are no rewards; write a module of "
            "your own, for example my_rewards.py beside the YAML, and name my_rewards:FUNCTION"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as problem:  # noqa: BLE001 - the user's module may raise anything
        where = traceback.extract_tb(problem.__traceback__)[-1]
        place = f" ({where.filename}, line {where.lineno})" if not isinstance(problem, ModuleNotFoundError) else ""
        raise UserError(
            f"task.reward={name!r}: importing {module_name} ended with {type(problem).__name__}: {problem}{place}; "
            f"its folder must be on Python's import path, as with PYTHONPATH={os.getcwd()} for this folder"
        ) from None
    reward = getattr(module, function, None)
    if not callable(reward):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        kind = type(reward).__name__
        what = "has no such function" if reward is None else f"has a {kind} of that name, not a function"
        raise UserError(
            f"task.reward={name!r}: {module.__file__} {what}; it has {', '.join(functions[:8]) or 'no function'}"
        )
    return cast(Reward, reward)


def rewarded(reward: Reward, text: str, answer: str, finished: bool) -> Verdict:
    """The verdict of a user's reward. After an error, or for a number other than 0 and 1, it has no label."""
    if not finished:
        return Verdict(0.0)
    try:
        label = reward(text, answer)
    except Exception:  # noqa: BLE001 - the user's function may raise anything, and an error must not become a label
        return Verdict(None, INVALID)
    return Verdict(float(label)) if label in (0, 1) else Verdict(None, INVALID)
