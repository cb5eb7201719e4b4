"""The user's reward: `module:function`, called with a response's whole text and the reference as the data has it.

The same function works in CPU training (`task.reward`), in NeMo-RL (`env.ada_math.reward`), in `eval` and
`data prepare` (`--reward`), and in TRL (`AdaRollout("module:function", ...)`). It runs in the verifier's processes,
which are killed at a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nemo_ada.by_name import place_of
from nemo_ada.errors import UserError
from nemo_ada.verify.verdict import defined, no_score

Reward = Callable[[str, Any], float]
"""Takes a response's text and the reference: a text, a number, a list or an object. Returns a number from 0 to 1; 1 is
right."""


def as_text(reference: Any) -> str:
    """Return a reference as a response may have it: what is no text as JSON."""
    return reference if isinstance(reference, str) else json.dumps(reference, default=str)


def try_reward(reward: Reward, key: str, answer: Any, *, boxed: bool = False) -> float:
    """Call a reward once on a reference, before anything starts.

    Args:
        reward: The function.
        key: How the user named it, for the message.
        answer: The reference. It is also the response, as JSON where it is no text.
        boxed: Whether the response has it in a box.

    Returns:
        The score.

    Raises:
        UserError: The function raised an error, which is named with its file and line, or returned no number in [0, 1].
    """
    text = as_text(answer)
    called = f"{key}: called with the reference {text[:80]!r} as response and answer, it"
    try:
        label = reward(f"\\boxed{{{text}}}" if boxed else text, answer)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's function may raise anything
        raise UserError(
            f"{called} ended with {type(problem).__name__}: {problem} ({place_of(problem, __file__)}); mend it first"
        ) from None
    if (why := no_score(label)) is not None:
        raise UserError(f"{called} returned {why} ({defined(reward)}); return a number from 0 to 1")
    return float(label)
