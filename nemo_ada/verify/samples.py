r"""Whether two real expressions are equal, by their values at points.

sympy's simplification does not show that \sqrt[3]{x^2} is x^{2/3} for real x, nor that \frac12\sin^2 x and
-\frac14\cos 2x differ by a constant only. Two expressions as short as an answer that agree to ten digits at all points
here are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import sympy

_CLOSE = 1e-10
_POINTS = 0.413, 1.732, 2.719, 5.386, 8.191, -0.613, -1.871, -3.142, -7.757
_FUNCTIONS: dict[Any, Callable[[float], float]] = {
    sympy.sin: math.sin,
    sympy.cos: math.cos,
    sympy.tan: math.tan,
    sympy.cot: lambda value: 1 / math.tan(value),
    sympy.sec: lambda value: 1 / math.cos(value),
    sympy.csc: lambda value: 1 / math.sin(value),
    sympy.sinh: math.sinh,
    sympy.cosh: math.cosh,
    sympy.tanh: math.tanh,
    sympy.atan: math.atan,
    sympy.asin: math.asin,
    sympy.acos: math.acos,
    sympy.exp: math.exp,
    sympy.log: math.log,
    sympy.Abs: abs,
}


class _NoValue(Exception):
    """An expression has no real value at a point."""


def equal_as_roots(gold: Any, given: Any) -> bool:
    """Return whether two expressions with roots are equal, and exist, at the same real points."""
    if not all(isinstance(one, sympy.Expr) for one in (gold, given)) or gold.free_symbols != given.free_symbols:
        return False
    if not 0 < len(gold.free_symbols) < 3 or not (_has_root(gold) and _has_root(given)):
        return False
    return _equal(gold, given)


def equal_up_to_a_constant(gold: Any, given: Any, constant: Any) -> bool:
    """Return whether two antiderivatives differ by a constant only, in their one variable beside `constant`."""
    if not all(isinstance(one, sympy.Add) and constant in one.args for one in (gold, given)):
        return False
    names = (gold.free_symbols | given.free_symbols) - {constant}
    if len(names) != 1 or gold.has(sympy.Abs) != given.has(sympy.Abs):
        return False
    (name,) = names
    slopes = [sympy.diff(_without_bars(one - constant), name) for one in (gold, given)]
    return _equal(*slopes)


def _without_bars(expression: Any) -> Any:
    """Return ln u for ln |u|, which has the same derivative."""
    return expression.replace(
        lambda part: isinstance(part, sympy.log) and isinstance(part.args[0], sympy.Abs),
        lambda part: sympy.log(part.args[0].args[0]),
    )


def _has_root(expression: Any) -> bool:
    powers = expression.atoms(sympy.Pow)
    return any(one.exp.is_Rational and not one.exp.is_Integer and one.free_symbols for one in powers)


def _equal(gold: Any, given: Any) -> bool:
    names = sorted(gold.free_symbols | given.free_symbols, key=str)
    compared = 0
    for values in product(_POINTS, repeat=len(names)):
        ours, theirs = (_at(one, dict(zip(names, values, strict=True))) for one in (gold, given))
        if (ours is None) != (theirs is None):
            return False
        if ours is None or theirs is None:
            continue
        if not math.isclose(ours, theirs, rel_tol=_CLOSE, abs_tol=_CLOSE):
            return False
        compared += 1
    return compared > len(names) + 1


def _at(expression: Any, point: dict[Any, float]) -> float | None:
    """Return the real value of an expression at a point. None where it has none."""
    try:
        return _value(expression, point)
    except (_NoValue, ArithmeticError, ValueError):
        return None


def _value(expression: Any, point: dict[Any, float]) -> float:
    if expression.is_Symbol:
        return point[expression]
    if expression.is_Number or expression.is_NumberSymbol:
        if not expression.is_finite:
            raise _NoValue(expression)
        return float(expression)
    parts = [_value(part, point) for part in expression.args]
    if expression.is_Add:
        return math.fsum(parts)
    if expression.is_Mul:
        return math.prod(parts)
    if expression.is_Pow:
        base, value = parts
        return _power(base, value, expression.exp)
    function = _FUNCTIONS.get(expression.func)
    if function is None:
        raise _NoValue(expression)
    return function(*parts)


def _power(base: float, value: float, exponent: Any) -> float:
    """Return a real power: the cube root of -8 is -2, and -1 has no square root."""
    if base >= 0 or exponent.is_Integer:
        return float(base**value)
    if not exponent.is_Rational or exponent.q % 2 == 0:
        raise _NoValue(base)
    return float((-1) ** int(exponent.p) * (-base) ** value)
