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
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from types import ModuleType
from typing import Any

import latex2sympy2_extended.latex2sympy2 as latex2sympy2
import math_verify.grader as grader
import sympy
from sympy.solvers.inequalities import solve_univariate_inequality

from nemo_ada.verify.agreement import Agreement
from nemo_ada.verify.asked import forbids, in_asked_unit, least_integer, other_words
from nemo_ada.verify.latex import tidy
from nemo_ada.verify.numbers import close, number, with_binomials, with_powers
from nemo_ada.verify.samples import equal_as_roots, equal_up_to_a_constant
from nemo_ada.verify.units import without_asked_words

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
_UNREADABLE = re.compile(r"\A\\text\s*\{[^{}]*\}\Z|[#&](?![^\0]*\\end)|\\(?:ldots|iff|quad)(?![a-z])|(?<!\^)\d \d|\d'")
_DEGREES = re.compile(r"(?P<value>\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\}|[A-Za-z])\s*°")
_IMAGINARY = re.compile(r"(?<![\\A-Za-z_{])\d*i(?![A-Za-z])|(?<=[\s}\d)])i(?![A-Za-z])|\{i\}|[a-z]i\b")
_BOUND = re.compile(r"\\(?:sum|prod|hat|vec)|_\{?i|\\int")
# The library adds numbers that stand side by side, in 2(3) as in 2\frac{1}{2}. Only the second is a sum.
_PRODUCT = re.compile(r"(?<![\w.^{}\\])(\d+(?:\.\d+)?)\s*(?=[({])|(\))\s*(?=[\d(])|(\})\s*(?=\\binom)")
_MIXED = re.compile(r"(?<![\w.^{}])(\d+)\s*(\\frac\{\d+\}\{\d+\})")
_DECIMAL_POWER = re.compile(r"\^\s*\{?\s*-?\d*\.\d")  # 8^{0.25}, which sympy does not simplify
_EXACT = Fraction(1, 10**13)
_THOUSANDS = re.compile(
    r"(?<![\w.,}])[1-9]\d{0,2}(?:\{,\}\d{3})+(?![\d{])"
)  # as `number` reads them; else {,} is a point
_PRIME = re.compile(r"(?<=[A-Za-z}])'+")  # the parser leaves it out
_NAMELESS = re.compile(r"\\gamma(?![a-z])")  # the parser for antlr 4.9.3 cannot read it


_NATURAL = re.compile(r"\\log(?![a-z])(?!\s*_(?!\s*\{?e(?!\w)))(?:\s*_\s*\{?e\}?)?")  # without another base


class Unreadable(Exception):
    """The parser cannot read an expression."""


def _parsed(text: str) -> Any:
    """Return the expression of a text. Raises Unreadable."""
    text = re.sub(r"\\log\s*_\s*(\w)", r"\\log_{\1}", text)
    if _UNREADABLE.search(text) or _PROSE.search(text):
        raise Unreadable(text)
    text = _THOUSANDS.sub(lambda match: match[0].replace("{,}", ""), text)
    text = _PRIME.sub(lambda match: f"_{{{'p' * len(match[0])}}}", text)
    text = with_binomials(text)
    latex = with_powers(_NAMELESS.sub(r"\\text{gamma}", text))
    latex = _DEGREES.sub(lambda match: f"({match['value']}\\cdot\\frac{{\\pi}}{{180}})", latex)
    latex = re.sub(r"(?<=\\pi)\s*(?=\()", r"\\cdot ", latex)
    latex = re.sub(r"\s*%", r"\\cdot\\frac{1}{100}", latex).replace("{,}", ".")
    imaginary = _IMAGINARY.search(latex) is not None and not _BOUND.search(latex)
    latex = _PRODUCT.sub(r"\1\2\3\\cdot ", _MIXED.sub(r"(\1+\2)", latex))
    config = latex2sympy2.ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
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
    if expression is None or (isinstance(expression, sympy.Basic) and expression.has(sympy.nan, sympy.zoo)):
        raise Unreadable(text)
    return (
        expression
        if imaginary or not isinstance(expression, sympy.Basic)
        else expression.replace(_odd_root, _real_root)
    )


def _odd_root(power: Any) -> bool:
    return bool(
        power.is_Pow and power.base.is_negative and power.exp.is_Rational and power.exp.q % 2 and power.exp.q > 1
    )


def _real_root(power: Any) -> Any:
    """The cube root of -8 is -2 where nothing is complex."""
    return (-1) ** power.exp.p * (-power.base) ** power.exp


_parse = lru_cache(maxsize=4096)(_parsed)  # all responses of a prompt share their reference


class MathVerify:
    """The algebra of math-verify."""

    def equal(self, reference: str, answer: str) -> bool:
        """Return whether two expressions, equations or inequalities say the same. False where one cannot be read."""
        try:
            gold, given = _one_parameter(_parse(reference), _parse(answer))
            if _is_endless(gold) or _is_endless(given):  # math-verify takes oo times a decimal for any number
                return bool(gold.doit() == given.doit())
            right = any(_same_expression(gold, renamed) for renamed in _renamings(gold, given))
            read = number(reference)
            if not right and r"\ln" in reference and _NATURAL.search(answer):  # \log, as mathematicians write it
                return self.equal(reference, _NATURAL.sub(r"\\ln", answer))
            right = right or equal_as_roots(gold, given) or _same_family(gold, given)
            right = right or (
                (r"\ln" in reference + answer or r"\log" in reference + answer) and _same_logarithms(gold, given)
            )
            if not right and _DECIMAL_POWER.search(reference + answer):
                exact = _real(gold), _real(given)
                return exact[0] is not None and exact[1] is not None and close(exact[0], exact[1], _EXACT)
            decimal = read is not None and read.kind == "decimal"
            values = (_real(gold), _real(given)) if right or decimal else (None, None)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - unreadable, or an expression that sympy cannot handle
            return False
        if values[0] is None or values[1] is None:
            return right
        return close(values[0], values[1])

    def same_progression(self, reference: str, answer: str) -> bool:
        """Return whether two expressions have the same values for all integers k, m or n."""
        try:
            gold, given = _one_parameter(_parse(reference), _parse(answer))
            (name,) = gold.free_symbols
            if str(name) not in _INTEGERS or given.free_symbols != {name}:
                return False
            steps = [sympy.diff(one, name) for one in (gold, given)]
            apart = sympy.simplify((gold - given).subs(name, 0) / steps[0])
            return bool(steps[0].is_number and steps[0] ** 2 == steps[1] ** 2 and apart.is_integer)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - unreadable, or no expression in one integer
            return False

    def value(self, text: str) -> Fraction | None:
        """Return the value of a real expression without variables. None for anything else."""
        try:
            return _real(_parse(text))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as above
            return None

    def solution(self, text: str) -> tuple[str, list[tuple[Fraction | None, bool, Fraction | None, bool]]] | None:
        """Return what solves an inequality in one variable. None for anything else."""
        try:
            relation = _parse(text)
            (variable,) = relation.free_symbols
            found = solve_univariate_inequality(relation, variable, relational=False)
            pieces = found.args if isinstance(found, sympy.Union) else (found,)
            return str(variable), [
                (_end(piece.start), not piece.left_open, _end(piece.end), not piece.right_open) for piece in pieces
            ]
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as above; or several variables, or a solution that is no interval
            return None


def _is_endless(expression: Any) -> bool:
    """Return whether a value, not a set or a relation, has an infinity in it."""
    return isinstance(expression, sympy.Expr) and expression.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)


def _end(value: Any) -> Fraction | None:
    """Return the end of an interval. None where it has none. Raises ValueError for one that is no real number."""
    if value in (sympy.oo, -sympy.oo):
        return None
    if (real := _real(value)) is None:
        raise ValueError(value)
    return real


_AGREEMENT = Agreement(MathVerify())


def score_math(answer: str, reference: str, prompt: str = "") -> float:
    r"""1.0 where the content of the answer's box equals the reference, else 0.0.

    Args:
        answer: what the boxes of a response say (`boxed`).
        reference: LaTeX or plain text without a box.
        prompt: the problem, where it is known. It says what was asked for: "how many dozens" makes 7 of `7 dozens`.

    Raises:
        ValueError: The reference is empty.
    """
    wanted = _tidy_reference(reference)
    if not wanted:
        raise ValueError(f"the reference answer {reference[:80]!r} is empty")
    given = tidy(answer)
    if _IMAGINARY.search(wanted) and not _IMAGINARY.search(given):  # 3 + 4j, as engineers write it
        given = re.sub(r"(?<=\d)j(?![A-Za-z])", "i", given)
    if not prompt:
        return float(bool(given) and _AGREEMENT.says(wanted, given))
    if number(wanted) is not None:
        given = in_asked_unit(prompt, without_asked_words(given, prompt))
    if not given or forbids(prompt, wanted, given):
        return 0.0
    return float(
        _AGREEMENT.says(wanted, given)
        or any(_AGREEMENT.says(one, other) for one, other in other_words(prompt, wanted, given))
        or ((least := least_integer(prompt)) is not None and _AGREEMENT.same_integers(wanted, given, least))
    )


_tidy_reference = lru_cache(maxsize=4096)(tidy)


_CONSTANT = re.compile(r"(?:[A-DKck]|[Cc]_\{?\d\}?)")


def _renamings(gold: Any, given: Any) -> Iterable[Any]:
    """Yield an expression, and what it becomes with other names of its constants: C_1 e^x + C_2 and A e^x + B."""
    yield given
    names: list[set[Any]] = [getattr(one, "free_symbols", set()) for one in (gold, given)]
    constants = [sorted((name for name in found if _CONSTANT.fullmatch(str(name))), key=str) for found in names]
    if not 1 < len(constants[0]) == len(constants[1]) < 4 or not names[0] & names[1] - set(constants[0]):
        return
    if constants[0] != constants[1] or all("_" in str(name) for name in constants[0]):
        for order in permutations(constants[0]):
            yield given.xreplace(dict(zip(constants[1], order, strict=True)))


_INTEGERS, _CONSTANTS = frozenset("kmn"), frozenset("CcKk")
_ANY_CONSTANT = re.compile(r"[ABCcKk]|[Cc]_\{?\d\}?")  # in an answer, where the reference has C or K


def _one_parameter(gold: Any, given: Any) -> tuple[Any, Any]:
    """Return both with one name for what may be any integer or any constant: 2k and 2n, x + C and x + K."""
    names: list[set[Any]] = [getattr(one, "free_symbols", set()) for one in (gold, given)]
    ours, theirs = names[0] - names[1], names[1] - names[0]
    if len(ours) == len(theirs) == 1 and not any(getattr(one, "is_Symbol", False) for one in (gold, given)):
        both = {str(name) for name in ours | theirs}
        if both <= _INTEGERS or (_arbitrary(*map(str, (*ours, *theirs))) and names[0] & names[1]):
            return gold, given.xreplace({theirs.pop(): ours.pop()})
    return gold, given


def _arbitrary(ours: str, theirs: str) -> bool:
    """Return whether a reference's name is that of an arbitrary constant, and an answer's may be."""
    known = {ours, theirs} <= _CONSTANTS or (ours in "CK" or ours.startswith(("C_", "c_")))
    return known and _ANY_CONSTANT.fullmatch(theirs) is not None


def _same_family(gold: Any, given: Any) -> bool:
    r"""Return whether two antiderivatives are the same: \frac12\sin^2 x + C and -\frac14\cos 2x + C."""
    names: set[Any] = getattr(gold, "free_symbols", set()) & getattr(given, "free_symbols", set())
    return any(str(name) in _CONSTANTS and equal_up_to_a_constant(gold, given, name) for name in names)


def _same_logarithms(gold: Any, given: Any) -> bool:
    """Return whether two expressions are equal where the logarithms of their letters exist: 2 ln x and ln x^2."""
    if (
        not isinstance(gold, sympy.Expr)
        or not isinstance(given, sympy.Expr)
        or gold.has(sympy.Abs)
        or given.has(sympy.Abs)
    ):
        return False
    positive = {name: sympy.Symbol(str(name), positive=True) for name in gold.free_symbols}
    return bool(sympy.simplify(sympy.expand_log((gold - given).xreplace(positive), force=True)) == 0)


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
    if isinstance(gold, sympy.Symbol) and isinstance(given, sympy.Symbol):
        return bool(gold == given)  # the library does not tell Delta from delta
    if any(isinstance(one, sympy.Symbol) for one in (gold, given)) and not (gold.free_symbols and given.free_symbols):
        return False  # nor E from e
    return bool(grader.verify(gold, given, timeout_seconds=None))


_LESS, _MORE = sympy.StrictLessThan | sympy.LessThan, sympy.StrictGreaterThan | sympy.GreaterThan
_STRICT = sympy.StrictLessThan | sympy.StrictGreaterThan


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
