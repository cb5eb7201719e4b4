r"""The names of values, and the letters in them: whether x = 3 and AB = 3, f(x) and f(t) may mean the same."""

from __future__ import annotations

import re

from nemo_ada.verify.amounts import Amount
from nemo_ada.verify.latex import compact
from nemo_ada.verify.reading import CALL, VARIABLE, Equation, Reading

_VARIABLES = re.compile("[A-DF-HJ-Za-df-hj-z]")  # without e and i
_WORDED = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+")
# What makes another quantity of a name. An arrow or a bar over a segment does not: AB is the length of it.
_OPERATION = re.compile(r"[|/']|\^\{?-1|\\(?:d*dot|frac|bar|hat|tilde|int|Delta|nabla|partial)(?![a-z])")
_LINE = re.compile(r"[A-Z]{2,3}'?")


def letters(text: str) -> set[str]:
    """Return the letters of a text that may be variables."""
    return set(_VARIABLES.findall(_WORDED.sub(" ", text)))


def lettered(equation: Equation) -> bool:
    """Return whether variables occur in the values of an equation."""
    return bool(letters(" ".join(equation.sides)))


def with_argument(wanted: Reading, given: Equation) -> Equation:
    """Return f(t) = t^2 with the letter of a wanted expression in x."""
    wanted_letters = letters(wanted.text) if isinstance(wanted, Amount) else set()
    call = CALL.fullmatch(compact(given.name).replace("^{-1}", ""))
    if len(wanted_letters) != 1 or call is None:
        return given
    (letter,) = wanted_letters
    named = f"{call['head']}({call['arguments']})"
    return same_argument(f"{call['head']}({letter})", Equation(given.text, named, given.sides, given.rounded))


def same_argument(name: str, equation: Equation) -> Equation:
    """Return f(n) = 2n with the letter of f(x)."""
    ours, theirs = CALL.fullmatch(compact(name)), CALL.fullmatch(compact(equation.name))
    if ours is None or theirs is None or ours["head"] != theirs["head"]:
        return equation
    inside = ours["arguments"], theirs["arguments"]
    if len(inside[0]) != 1 or len(inside[1]) != 1 or not "".join(inside).islower() or inside[0] == inside[1]:
        return equation
    if inside[0] in letters(" ".join(equation.sides)):
        return equation
    this = re.compile(rf"(?<![\\a-zA-Z]){inside[1]}(?![a-zA-Z])")
    sides = tuple(this.sub(inside[0], side) for side in equation.sides)
    return Equation(f"{name} = {' = '.join(sides)}", name, sides, equation.rounded)


def different(ours: str, theirs: str) -> bool:
    """Return whether two names cannot mean the same: x and y, P(A) and P(B). A word may stand for any letter."""
    ours, theirs = compact(ours), compact(theirs)
    if ours == theirs:
        return False
    if ours.replace("'", "") == theirs.replace("'", ""):  # a function and its derivative, a point and its image
        return True
    if CALL.fullmatch(ours) and CALL.fullmatch(theirs):
        return True
    if theirs.startswith(f"{ours}_"):  # x_1 is an x
        return False
    if bool(_OPERATION.search(ours)) != bool(_OPERATION.search(theirs)):  # y and dy/dx, x and |x|
        alone, changed = (theirs, ours) if _OPERATION.search(ours) else (ours, theirs)
        called = CALL.fullmatch(alone)
        alone = called["head"] if called else alone
        within = changed if alone.startswith("\\") else re.sub(r"\\[a-z]+", " ", changed)
        return bool(VARIABLE.fullmatch(alone)) and alone in within
    lines = _LINE.fullmatch(ours) and _LINE.fullmatch(theirs)  # AB = 5, CD = 5
    return bool(lines or (VARIABLE.fullmatch(ours) and VARIABLE.fullmatch(theirs))) or "," in ours + theirs
