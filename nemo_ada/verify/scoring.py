r"""The default scorer: is this boxed answer equal to the reference, by math-verify.

Runs only in the verifier's worker processes. Two habits of the library are turned off there:

* its deadlines by SIGALRM (`parsing_timeout`, `timeout_seconds`): they work in the main thread only, cannot interrupt
  a C function that does not look for signals, and their expiry reads as "not equal". The pool's deadline kills the
  process instead.
* its `except Exception` around comparisons, which would turn "out of memory" into "not equal". The name is rebound
  in its modules to all direct subclasses of Exception but MemoryError, so that only that one passes through.
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

# The library warns once per process that its own deadlines are off, which is the purpose here.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_EXTRACTION = (parser.LatexExtractionConfig(boxed_match_priority=0), parser.ExprExtractionConfig())


def let_memory_errors_pass(*modules: ModuleType) -> None:
    """Make the modules' `except Exception` let MemoryError through (see the module docstring)."""
    caught = tuple(kind for kind in Exception.__subclasses__() if kind is not MemoryError)
    for module in modules:
        vars(module)["Exception"] = caught


let_memory_errors_pass(grader, parser, latex2sympy2, math_normalization)


def _parse(latex: str) -> list[Any]:
    parsed: list[Any] = parser.parse(f"\\boxed{{{latex}}}", _EXTRACTION, parsing_timeout=None)
    return parsed


_parse_reference = lru_cache(maxsize=4096)(_parse)  # the responses of a prompt share it


def score_math(answer: str, reference: str) -> float:
    r"""1.0 where the content of the answer's box equals the reference, else 0.0.

    The reference is LaTeX or plain text without a box. Raises ValueError where the reference itself cannot be read:
    then no answer can be judged.
    """
    gold = _parse_reference(reference)
    if not gold:
        raise ValueError(f"the reference answer {reference[:80]!r} cannot be parsed")
    return float(grader.verify(gold, _parse(answer), timeout_seconds=None))
