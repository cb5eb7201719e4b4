"""The trial of a user's reward before anything starts, in the processes that will run it."""

from __future__ import annotations

from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.reference import as_text


def try_reward(key: str, name: str, raw: Any, pool: MathVerifier) -> bool:
    """Call a reward with a right answer, the same in a box, a wrong one, none, and one that was cut off.

    Args:
        key: How the user named it, for messages.
        name: `package.module:function`.
        raw: A reference as the data have it.
        pool: The processes that will run it.

    Returns:
        Whether the function takes the reference for right in a box only.

    Raises:
        UserError: It raised an error, which is named with file and line, or returned no number in [0, 1].
    """
    right = as_text(raw)
    answers = {
        "the reference": right, "the reference in a box": f"\\boxed{{{right}}}", "a wrong answer": f"{right}1",
        "an empty answer": "", "an answer that was cut off": f"so it is \\boxed{{{right[:1]}",
    }  # fmt: skip
    verdicts = pool.verify_many((text, raw) for text in answers.values())
    for (kind, text), verdict in zip(answers.items(), verdicts, strict=True):
        if verdict.label is None:
            raise UserError(
                f"{key}={name}: called with {kind} as response, {text[:80]!r}, it failed: "
                f"{verdict.detail or verdict.cause}; mend it first"
            )
    plain, boxed = (verdict.label for verdict in verdicts[:2])
    return plain is not None and boxed is not None and plain < 1.0 <= boxed
