"""The user's reward: `module:function`, called with a response's whole text and the reference answer.

The same function works in CPU training (`task.reward`), in NeMo-RL (`env.ada_math.reward`), in `eval` and
`data prepare` (`--reward`), and in TRL (`AdaRollout("module:function", ...)`).
"""

from __future__ import annotations

from collections.abc import Callable

from nemo_ada.by_name import place_of
from nemo_ada.errors import UserError
from nemo_ada.verify.verdict import REWARD, Verdict, no_score

Reward = Callable[[str, str], float]
"""Takes a response's text and the reference answer. Returns a number from 0 to 1; 1 is right."""


def try_reward(reward: Reward, key: str, answer: str, *, boxed: bool = False) -> float:
    """Call a reward once on a reference, before anything starts.

    Args:
        reward: The function.
        key: How the user named it, for the message.
        answer: The reference. It is also the response.
        boxed: Whether the response has it in a box.

    Returns:
        The score.

    Raises:
        UserError: The function raised an error, which is named with its file and line, or returned no number in [0, 1].
    """
    called = f"{key}: called with the reference {answer[:80]!r} as response and answer, it"
    try:
        label = reward(f"\\boxed{{{answer}}}" if boxed else answer, answer)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's function may raise anything
        raise UserError(
            f"{called} ended with {type(problem).__name__}: {problem} ({place_of(problem, __file__)}); mend it first"
        ) from None
    if (why := no_score(label)) is not None:
        raise UserError(f"{called} returned {why} ({_defined(reward)}); return a number from 0 to 1")
    return float(label)


def rewarded(reward: Reward, text: str, answer: str, finished: bool) -> Verdict:
    """Return the verdict of a user's reward.

    After an error, or for no number in [0, 1], it has no label but file and line.
    """
    if not finished:
        return Verdict(0.0)
    try:
        label = reward(text, answer)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - no label, and no end of the run
        return Verdict(None, f"{REWARD} {place_of(problem, __file__)} {type(problem).__name__}")
    if (why := no_score(label)) is not None:
        return Verdict(None, f"{REWARD} {_defined(reward)} returned {why}")
    return Verdict(float(label))


def _defined(reward: Reward) -> str:
    code = getattr(reward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(reward).__name__
