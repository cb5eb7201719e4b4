"""The trial of a user's reward before anything starts, in the processes that will run it."""

from __future__ import annotations

import logging
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.start import PASS
from nemo_ada.verify.outside import HIDES, REFUSES
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.reference import as_text
from nemo_ada.verify.verdict import Verdict

log = logging.getLogger(__name__)
OUTSIDE = "outside [0, 1]"  # part of what a worker says of a number


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
        UserError: It raised an error, which is named with file and line, returned no number in its range, or asked for
            something that it does not get there. The message says how to mend or to declare that.
    """
    right = as_text(raw)
    answers = {
        "the reference": right, "the reference in a box": f"\\boxed{{{right}}}", "a wrong answer": f"{right}1",
        "an empty answer": "", "an answer that was cut off": f"so it is \\boxed{{{right[:1]}",
    }  # fmt: skip
    verdicts = pool.try_out((text, raw) for text in answers.values())
    for (kind, text), verdict in zip(answers.items(), verdicts, strict=True):
        if verdict.label is None or verdict.detail:
            what = "failed" if verdict.label is None else f"gave {verdict.label:g}"
            raise UserError(
                f"{key}={name}: called with {kind} as response, {text[:80]!r}, it {what}: "
                f"{verdict.detail or verdict.cause}; {_write_advice(name.rpartition(':')[2], verdict)}"
            )
    labels = [verdict.label or 0.0 for verdict in verdicts]
    if max(labels[:2]) <= max(labels[2:4]):  # what was cut may hold a short answer whole
        told = ", ".join(f"{label:g}" for label in labels)
        log.warning("%s=%s gives the reference %r no more than a wrong or an empty answer (%s)", key, name, right, told)
    return labels[0] < 1.0 <= labels[1]


def _write_advice(function: str, verdict: Verdict) -> str:
    """Return what would mend a failure."""
    detail = verdict.detail
    if HIDES in detail and REFUSES not in detail:
        return f"{PASS}={detail.partition(HIDES)[2].partition(' that')[0].replace(', ', ' ')!r} hands it on"
    if REFUSES in detail:
        if "no files" in detail:
            return (
                "read it while the module is imported, or write below the function: "
                f"{function}.needs = {{'files': [PATH]}}"
            )
        need = "network" if "no network" in detail else "processes"
        return f"write below the function: {function}.needs = {{'{need}'}}, after reading SECURITY.md"
    if OUTSIDE in detail:
        return f"write below the function what it returns: {function}.range = (-1, 1), which makes 0 of -1"
    return "mend it first"
