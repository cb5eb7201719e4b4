r"""The default scorer: math-verify decides whether a boxed answer equals the reference.

Runs only in the verifier's worker processes. Importing it fills math-verify's caches, so that new workers of the fork
server start warm. Two behaviours of the library are turned off:

* Its deadlines by SIGALRM (`parsing_timeout`, `timeout_seconds`). They cannot interrupt a long C function, and a
  timeout reads as "not equal". The pool's deadline kills the process instead.
* Its `except Exception` around comparisons, which turns "out of memory" into "not equal". In its modules the name
  `Exception` stands for all direct subclasses except MemoryError, so only that one passes.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from types import ModuleType
from typing import Any

import latex2sympy2_extended.latex2sympy2 as latex2sympy2
import latex2sympy2_extended.math_normalization as math_normalization
import math_verify.grader as grader
import math_verify.parser as parser

# The library warns that its own deadlines are off. This is intended.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_EXTRACTION = (parser.LatexExtractionConfig(boxed_match_priority=0), parser.ExprExtractionConfig())


def let_memory_errors_pass(*modules: ModuleType) -> None:
    """Let MemoryError pass the modules' `except Exception` (see the module docstring)."""
    caught = tuple(kind for kind in Exception.__subclasses__() if kind is not MemoryError)
    for module in modules:
        vars(module)["Exception"] = caught


let_memory_errors_pass(grader, parser, latex2sympy2, math_normalization)


def _parse(latex: str) -> list[Any]:
    parsed: list[Any] = parser.parse(f"\\boxed{{{latex}}}", _EXTRACTION, parsing_timeout=None)
    return parsed


_parse_reference = lru_cache(maxsize=4096)(_parse)  # all responses of a prompt share it


def score_math(answer: str, reference: str) -> float:
    r"""1.0 where the content of the answer's box equals the reference, else 0.0.

    The reference is LaTeX or plain text without a box. Raises ValueError where the reference cannot be read.
    """
    gold = _parse_reference(reference)
    if not gold:
        raise ValueError(f"the reference answer {reference[:80]!r} cannot be parsed")
    return float(grader.verify(gold, _parse(answer), timeout_seconds=None))


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
