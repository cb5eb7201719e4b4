r"""The final answer of a response: the content of its last \boxed{...}."""

from __future__ import annotations

import re

_START = re.compile(r"\\f?box(?:ed)?\s*(?=\{)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped, so that \{ and \} do not count


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{...} or \fbox{...}. None where there is none, or where it is not closed.

    An unclosed last box means that the response was cut off in its answer. An earlier box does not replace it.
    Of nested boxes the innermost last one counts. Takes linear time in the length of the text.
    """
    start = None
    for match in _START.finditer(text):
        start = match.end()
    if start is None:
        return None
    depth = 0
    for match in _BRACE.finditer(text, start):
        token = match.group()
        depth += (token == "{") - (token == "}")
        if depth == 0:
            return text[start + 1 : match.start()].strip()
    return None


def plain_reference(reference: str) -> str:
    r"""Return the reference answer, without its \boxed{} if it has one."""
    inner = last_boxed(reference)
    return reference.strip() if inner is None else inner
