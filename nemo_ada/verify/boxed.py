r"""The final answer of a response: the content of its last \boxed{...}."""

from __future__ import annotations

import re

_START = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is skipped, so that \{ and \} do not count
# What \boxed takes without braces: a number, a capital letter, a command with its arguments.
_BARE = re.compile(r"[-+]?[\d.][\w.,/%^]*|[A-Z](?![A-Za-z])|\\(?:d?frac|sqrt|pi|text)(?![a-z])(?:\{[^{}]*\})*")
_THINK, _THOUGHT = "<think>", "</think>"


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{...} or \fbox{...}. None where there is none, or where it is not closed.

    An unclosed last box means that the response was cut off in its answer. An earlier box does not replace it. A box in
    a thought does not count: what follows `</think>` is the answer, and a `<think>` without end has none. Of nested
    boxes the innermost last one counts. An empty box counts only where no other does. `\boxed 5` is a box, too.
    Takes time linear in the length of the text.
    """
    text = _said(text)
    empty: str | None = None
    for match in reversed(list(_START.finditer(text))):
        content = _content(text, match.end())
        if content is None or content:
            return content
        empty = "" if text.startswith("{", match.end()) else empty
    return empty


def plain_reference(reference: str) -> str:
    r"""Return the reference answer, without its \boxed{} if it has one."""
    inner = last_boxed(reference)
    return reference.strip() if inner is None else inner


def _said(text: str) -> str:
    """Return the text behind the last thought that ends, without one that does not end."""
    return text.rpartition(_THOUGHT)[2].partition(_THINK)[0]


def _content(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        bare = _BARE.match(text, start)
        return bare.group().rstrip(".,") if bare is not None else ""
    depth = 0
    for match in _BRACE.finditer(text, start):
        token = match.group()
        depth += (token == "{") - (token == "}")
        if depth == 0:
            return text[start + 1 : match.start()].strip()
    return None
