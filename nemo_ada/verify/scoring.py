r"""The default scorer: math-verify decides whether a boxed answer equals the reference.

Runs only in the verifier's worker processes. Importing it fills math-verify's caches, so that new workers of the fork
server start warm. Two behaviours of the library are turned off:

* Its deadlines by SIGALRM (`parsing_timeout`, `timeout_seconds`). They cannot interrupt a long C function, and a
  timeout reads as "not equal". The pool's deadline kills the process instead.
* Its `except Exception` around comparisons, which turns "out of memory" into "not equal". In its modules the name
  `Exception` stands for all direct subclasses except MemoryError, so only that one passes.

Numbers are compared as numbers (`numbers`). Three of the library's own rules give way to that: its six decimal places,
which call all small numbers equal; its reading of e-notation; and that of an equation only the last side counts.
"""

from __future__ import annotations

import logging
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any

import latex2sympy2_extended.latex2sympy2 as latex2sympy2
import latex2sympy2_extended.math_normalization as math_normalization
import math_verify.grader as grader
import math_verify.parser as parser
import sympy

from nemo_ada.verify.numbers import TOLERANCE, based, close, number, with_powers

# The library warns that its own deadlines are off. This is intended.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_ROUNDED = Fraction(1, 100)  # 1/3 = 0.333 is no contradiction
_EXTRACTION = (parser.LatexExtractionConfig(boxed_match_priority=0), parser.ExprExtractionConfig())


def let_memory_errors_pass(*modules: ModuleType) -> None:
    """Let MemoryError pass the modules' `except Exception` (see the module docstring)."""
    caught = tuple(kind for kind in Exception.__subclasses__() if kind is not MemoryError)
    for module in modules:
        vars(module)["Exception"] = caught


let_memory_errors_pass(grader, parser, latex2sympy2, math_normalization)


def _parse(latex: str) -> list[Any]:
    parsed: list[Any] = parser.parse(f"\\boxed{{{with_powers(latex)}}}", _EXTRACTION, parsing_timeout=None)
    return parsed


_parse_reference = lru_cache(maxsize=4096)(_parse)  # all responses of a prompt share it


def score_math(answer: str, reference: str) -> float:
    r"""1.0 where the content of the answer's box equals the reference, else 0.0.

    The reference is LaTeX or plain text without a box. Raises ValueError where the reference cannot be read.
    """
    wanted, given = _number_of_reference(reference), number(answer)
    if wanted is not None and given is not None:
        return float(wanted.equals(given))
    bases = based(reference), based(answer)
    if None not in bases:
        return float(bases[0] == bases[1])
    gold = _parse_reference(reference)
    if not gold:
        raise ValueError(f"the reference answer {reference[:80]!r} cannot be parsed")
    parsed = _parse(answer)
    if not parsed or _contradicts_itself(answer, parsed[0]):
        return 0.0
    right = bool(grader.verify(gold, parsed, timeout_seconds=None))
    decimal = wanted is not None and wanted.kind == "decimal"
    if not (right or decimal) or "%" in answer + reference:  # 50% is 1/2 and 50
        return float(right)
    values = _value(gold[0]), _value(parsed[0])
    if values[0] is None or values[1] is None:
        return float(right)
    return float((right or decimal) and close(values[0], values[1]))


_number_of_reference = lru_cache(maxsize=4096)(number)


def _value(expression: Any) -> Fraction | None:
    """The value of a real number, or of what a letter is said to be. None for anything else."""
    if isinstance(expression, sympy.Basic) and grader.is_assignment_relation(expression):
        expression = grader.take_last_relation(expression).rhs
    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    value = expression.doit().evalf(30)
    if value.is_Float or value.is_Rational:
        return Fraction(sympy.Rational(value).p, sympy.Rational(value).q)
    return None


def _contradicts_itself(answer: str, expression: Any) -> bool:
    """Whether an equation's sides that are numbers are not all equal: 41 = 42. A rounded side may be off by 1 %."""
    sides = [read for side in answer.split("=") if (read := number(side)) is not None]
    values = [read.value for read in sides]  # of a chain of numbers, which the library does not read as an equation
    rounded = any(read.kind == "decimal" for read in sides)
    if isinstance(expression, sympy.Basic) and grader.is_equation(expression):
        parts = (expression,) if isinstance(expression, sympy.Eq) else expression._unsorted_args
        values += [value for part in parts for side in part.args if (value := _value(side)) is not None]
        rounded = rounded or expression.has(sympy.Float)
    return any(not close(values[0], value, _ROUNDED if rounded else TOLERANCE) for value in values[1:])


for _answer, _reference in (
    (r"\frac{1}{2}", "0.5"),
    (r"\sqrt{2}+1", r"1+\sqrt{2}"),
    ("(1,2)", "[1,2]"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("x=3", "3"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"\text{Tuesday}", r"\text{Monday}"),
    (r"50\%", "0.5"),
):
    score_math(_answer, _reference)
