r"""An audit of reference answers: what a verifier cannot compare, or may compare with something else than was meant.

Such references are not wrong in themselves: two equal texts are equal. They pay nothing for a right answer that is
written in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nemo_ada.verify.latex import tidy
from nemo_ada.verify.reading import Items, readings
from nemo_ada.verify.words import Text

KINDS: Mapping[str, str] = {
    "control": r"a control character, as where \boxed in a string lost its backslash",
    "rationale": "a derivation, of which no answer is marked",
    "several": "several answers, of which one would do",
    "prose": "words, which only the same words equal",
}
AUDITED = 2000  # references of a data set, which take a second
LONG, WORDS = 200, 4
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\t\r](?=(?:ext|imes|heta|frac|an|ight|ho)(?![a-z]))")
_RELATION = re.compile(r"[<>=]|\\(?:ne|neq|le|leq|ge|geq|in)(?![a-z])")
_DERIVED = re.compile(r"\n|[.!?] [A-Z]|\b(?:so|therefore|thus|hence|because)\b", re.IGNORECASE)


def kind_of(reference: str) -> str | None:
    """Return the first of KINDS that a reference's text shows. None says nothing about whether it can be computed."""
    if _CONTROL.search(reference):
        return "control"
    if len(reference) > LONG or (" " in reference and _DERIVED.search(reference)):
        return "rationale"
    read = readings(tidy(reference))
    if any(isinstance(one, Items) and one.joined == "or" and not _RELATION.search(reference) for one in read):
        return "several"
    if all(isinstance(one, Text) and len(one.words.split()) >= WORDS for one in read):
        return "prose"
    return None


def describe_kinds(counts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each kind: how many references there are, and the first line."""
    return [
        f"{found['count']} reference(s) hold {KINDS[kind]} ({kind}; first in line {found['line']})"
        for kind, found in counts.items()
    ]


def count_kinds(found: Iterable[tuple[int, str | None]]) -> dict[str, dict[str, int]]:
    """Count (line, kind) pairs by kind, with the first line of each."""
    counts: dict[str, dict[str, int]] = {}
    for line, kind in found:
        if kind is not None:
            counts.setdefault(kind, {"count": 0, "line": line})["count"] += 1
    return counts
