"""Parts of the real line, as sets of sympy: intervals, points and their unions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import sympy

from nemo_ada.verify.numbers import TOLERANCE

Ends = tuple[Fraction | None, Fraction | None, bool, bool]
"""A piece: its ends (None where it has none), and whether it holds them."""


def union(pieces: Iterable[Ends]) -> Any:
    """Return the set of some pieces."""
    return sympy.Union(
        *(
            sympy.Interval(
                -sympy.oo if low is None else sympy.Rational(low.numerator, low.denominator),
                sympy.oo if high is None else sympy.Rational(high.numerator, high.denominator),
                not left,
                not right,
            )
            for low, high, left, right in pieces
        )
    )


def same(one: Any, other: Any) -> bool:
    """Return whether two sets have the same pieces. Ends that are no integers may differ as decimals do."""
    ours, theirs = _pieces(one), _pieces(other)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return False
    return all(a[2:] == b[2:] and _near(a[0], b[0]) and _near(a[1], b[1]) for a, b in zip(ours, theirs, strict=True))


def _pieces(whole: Any) -> list[tuple[float, float, bool, bool]] | None:
    """Return the pieces of a set from left to right. None where one is no interval and no point."""
    found: list[tuple[float, float, bool, bool]] = []
    for part in whole.args if isinstance(whole, sympy.Union) else (whole,):
        if isinstance(part, sympy.FiniteSet):
            found += [(float(point), float(point), False, False) for point in part]
        elif isinstance(part, sympy.Interval):
            found.append((float(part.start), float(part.end), bool(part.left_open), bool(part.right_open)))
        elif part is not sympy.S.EmptySet:
            return None
    return sorted(found)


def _near(one: float, other: float) -> bool:
    exact = one.is_integer() and other.is_integer()
    return one == other or (not exact and math.isclose(one, other, rel_tol=float(TOLERANCE)))
