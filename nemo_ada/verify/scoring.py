r"""The default scorer: does a boxed answer equal its reference?

An answer and a reference are read as types first (`reading`): amounts with units, lists, regions, ratios, times and
words. math-verify compares the expressions inside. It reads LaTeX only, and the whole of it. Its own search for some
number in a text is not used, because that pays 5 for a reference `x \neq \pm 5`. A reference that cannot be read is
equal to the same text, and to nothing else.

Runs only in the verifier's worker processes. Importing it fills math-verify's caches, so that new workers of the fork
server start warm. Two behaviours of the library are turned off:

* Its deadlines by SIGALRM (`timeout_seconds`). They cannot interrupt a long C function, and a timeout reads as "not
  equal". The pool's deadline kills the process instead.
* Its `except Exception` around comparisons, which turns "out of memory" into "not equal". In its modules the name
  `Exception` stands for all direct subclasses except MemoryError, so only that one passes.

Numbers are compared as numbers (`numbers`). Two of the library's own rules give way to that: its six decimal places,
which call all small numbers equal, and its reading of e-notation.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any

import latex2sympy2_extended.latex2sympy2 as latex2sympy2
import math_verify.grader as grader
import sympy

from nemo_ada.verify.agreement import Agreement
from nemo_ada.verify.latex import tidy
from nemo_ada.verify.numbers import close, number, with_powers
from nemo_ada.verify.reading import MAX_DEPTH, Amount, Equation, Items, Order, Ratio, Reading, readings

# The library warns that its own deadlines are off. This is intended.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def let_memory_errors_pass(*modules: ModuleType) -> None:
    """Let MemoryError pass the modules' `except Exception` (see the module docstring)."""
    caught = tuple(kind for kind in Exception.__subclasses__() if kind is not MemoryError)
    for module in modules:
        vars(module)["Exception"] = caught


let_memory_errors_pass(grader, latex2sympy2)

_LETTER = re.compile(r"(?<!\\)(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{6,}")
_UNREADABLE = re.compile(r"[#&](?![^\0]*\\end)|\\(?:ldots|iff|quad)(?![a-z])|(?<!\^)\d \d|\d'\d")
_DEGREES = re.compile(r"(?P<value>\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\}|[A-Za-z])\s*°")
_IMAGINARY = re.compile(r"(?<![\\A-Za-z_{])\d*i(?![A-Za-z])|(?<=[\s}\d)])i(?![A-Za-z])|\{i\}|[a-z]i\b")
_BOUND = re.compile(r"\\(?:sum|prod|hat|vec)|_\{?i|\\int")
# The library adds numbers that stand side by side, in 2(3) as in 2\frac{1}{2}. Only the second is a sum.
_PRODUCT = re.compile(r"(?<![\w.^{}\\])(\d+(?:\.\d+)?)\s*(?=[({])|(\))\s*(?=[\d(])")
_MIXED = re.compile(r"(?<![\w.^{}])(\d+)\s*(\\frac\{\d+\}\{\d+\})")
_NAMELESS = re.compile(r"\\gamma(?![a-z])")  # the parser for antlr 4.9.3 cannot read it


class Unreadable(Exception):
    """The parser cannot read an expression."""


def _parsed(text: str, cased: bool) -> Any:
    """Return the expression of a text. Raises Unreadable."""
    text = re.sub(r"\\log\s*_\s*(\w)", r"\\log_{\1}", text)
    if _UNREADABLE.search(text) or _PROSE.search(text):
        raise Unreadable(text)
    latex = with_powers(_NAMELESS.sub(r"\\text{gamma}", text))
    latex = _DEGREES.sub(lambda match: f"({match['value']}\\cdot\\frac{{\\pi}}{{180}})", latex)
    latex = re.sub(r"\s*%", r"\\cdot\\frac{1}{100}", latex).replace("{,}", ".")
    imaginary = _IMAGINARY.search(latex) is not None and not _BOUND.search(latex)
    latex = _PRODUCT.sub(r"\1\2\\cdot ", _MIXED.sub(r"(\1+\2)", latex))
    config = latex2sympy2.ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=not cased)
    try:
        expression: Any = latex2sympy2.latex2sympy(
            latex, is_real=not imaginary, normalization_config=None, conversion_config=config
        )
        if imaginary:
            expression = expression.xreplace({sympy.Symbol("i", real=False): sympy.I, sympy.Symbol("i"): sympy.I})
    except MemoryError:
        raise
    except Exception as problem:  # the parser raises whatever it likes
        raise Unreadable(text) from problem
    if expression is None:
        raise Unreadable(text)
    return expression


_parse = lru_cache(maxsize=4096)(_parsed)  # all responses of a prompt share their reference


class MathVerify:
    """The algebra of math-verify."""

    def equal(self, reference: str, answer: str) -> bool:
        """Return whether two expressions, equations or inequalities say the same. False where one cannot be read."""
        cased = _both_cases(reference) or _both_cases(answer)
        try:
            gold, given = _parse(reference, cased), _parse(answer, cased)
            right = _same_expression(gold, given)
            read = number(reference)
            decimal = read is not None and read.kind == "decimal"
            values = (_real(gold), _real(given)) if right or decimal else (None, None)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - unreadable, or an expression that sympy cannot handle
            return False
        if values[0] is None or values[1] is None:
            return right
        return close(values[0], values[1])

    def value(self, text: str) -> Fraction | None:
        """Return the value of a real expression without variables. None for anything else."""
        try:
            return _real(_parse(text, False))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as above
            return None


_AGREEMENT = Agreement(MathVerify())


def score_math(answer: str, reference: str) -> float:
    r"""1.0 where the content of the answer's box equals the reference, else 0.0.

    The reference is LaTeX or plain text without a box. Raises ValueError where it is empty.
    """
    wanted = _tidy_reference(reference)
    if not wanted:
        raise ValueError(f"the reference answer {reference[:80]!r} is empty")
    given = tidy(answer)
    return float(bool(given) and _AGREEMENT.says(wanted, given))


_tidy_reference = lru_cache(maxsize=4096)(tidy)


def can_compute(_answer: str, reference: str) -> float:
    """1.0 where the parts of a reference can be read: as numbers, words, regions, or by the parser. Else 0.0."""
    return float(any(_computable(reading, 0) for reading in readings(_tidy_reference(reference))))


def _computable(reading: Reading, depth: int) -> bool:
    if isinstance(reading, Amount):
        return reading.number is not None or _parses(reading.text)
    parts: tuple[str, ...] = ()
    if isinstance(reading, Items):
        parts = reading.items
    elif isinstance(reading, Equation | Order):
        parts = reading.sides
    elif isinstance(reading, Ratio):
        parts = reading.parts
    return depth > MAX_DEPTH or all(any(_computable(one, depth + 1) for one in readings(part)) for part in parts)


def _parses(text: str) -> bool:
    try:
        return _parse(text, False) is not None
    except Unreadable:
        return False


def _same_expression(gold: Any, given: Any) -> bool:
    """Return whether two expressions are equal. Two equations are, where one is a multiple of the other."""
    if isinstance(gold, sympy.Eq) and isinstance(given, sympy.Eq):
        sides = [equation.lhs - equation.rhs for equation in (gold, given)]
        if all(isinstance(side, sympy.Expr) for side in sides):
            if sides[0] == 0 or sides[1] == 0:
                return bool(sides[0] == sides[1])
            if not sides[0].free_symbols or sides[0].free_symbols != sides[1].free_symbols:
                return False
            factor = sympy.cancel(sides[0] / sides[1])
            return bool(factor.is_number) or bool(sympy.simplify(factor).is_number)
    if isinstance(gold, _LESS | _MORE) and isinstance(given, _LESS | _MORE):
        if isinstance(gold, _STRICT) != isinstance(given, _STRICT):
            return False
        below = [(rel.lhs - rel.rhs) * (1 if isinstance(rel, _LESS) else -1) for rel in (gold, given)]
        factor = sympy.cancel(below[0] / below[1]) if below[1] != 0 else sympy.S.Zero
        return bool(factor.is_positive)
    return bool(grader.verify(gold, given, timeout_seconds=None))


_LESS, _MORE = sympy.StrictLessThan | sympy.LessThan, sympy.StrictGreaterThan | sympy.GreaterThan
_STRICT = sympy.StrictLessThan | sympy.StrictGreaterThan


def _both_cases(text: str) -> bool:
    """Return whether a letter is in a text both as a capital and as a small one, and so means two things."""
    letters = set(re.sub(r"\\[a-zA-Z]+|[^A-Za-z]", "", text))
    return any(letter.lower() in letters for letter in letters if letter.isupper())


def _real(expression: Any) -> Fraction | None:
    """Return the value of a real number. None for anything else."""
    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    value = expression.doit().evalf(30)
    if value.is_Float or value.is_Rational:
        return Fraction(sympy.Rational(value).p, sympy.Rational(value).q)
    return None


for _answer, _reference in (
    (r"\frac{\sqrt{2}}{2}", "0.5"),
    (r"\sqrt{2}+1", r"1+\sqrt{2}"),
    ("x^2-1", "(x-1)(x+1)"),
    ("2x+y=3", "y=3-2x"),
    (r"\begin{pmatrix}1&0\\2&x\end{pmatrix}", r"\begin{pmatrix}1&0\\3&x\end{pmatrix}"),
    (r"e^{i\pi}", "-1"),
    (r"\sin 30^\circ", r"\frac{1}{2}"),
):
    score_math(_answer, _reference)
