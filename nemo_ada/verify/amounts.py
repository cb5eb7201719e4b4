r"""Amounts: a number or an expression with its unit: 12 \text{ cm}, \$5, 3 dozen."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from nemo_ada.verify.latex import split
from nemo_ada.verify.numbers import Number, number
from nemo_ada.verify.units import BASES, Unit, unit

AND_OR = r"\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
COMMA = re.compile(rf"(?<![{{\\])[,;](?!\}})|{AND_OR}|\\\\|\\iff(?![a-z])")
_UNIT_AT_END = re.compile(
    r"(?P<value>.*?[\w)}\].])(?P<blank>\s*)(?P<unit>/?\s*(?:\\text\s*\{[^{}]*\}|\\\$|[°%€£₹¥¢₽]|\\Omega|\\mu\s*\\text|[^\x00-\x7f])"
    r"(?:[^0-9\\]|\^\{?-?\d\}?|\\text\s*\{[^{}]*\}|\\\$|\\cdot)*)",
    re.DOTALL,
)
_WORD_AT_END = re.compile(
    r"(?P<value>.*?[\d)}\]i])(?P<blank>\s*)(?P<unit>\(?[a-zA-Z][a-zA-Z. /]*(?:\^\{?\d\}?)?\)?)", re.DOTALL
)
_MONEY = re.compile(r"(?P<sign>-?)\s*(?P<unit>\\\$|[€£₹¥])\s*(?P<value>[^\\$€£₹¥\s+-].*)", re.DOTALL)
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_NO_AMOUNT = re.compile(r"\\(?:ne|le|ge|in|mid|cup|cap)(?![a-z])|[<>=]")
_VALUED = re.compile(r"\d|\\pi|\\sqrt")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number or an expression. `number` is None for an expression, `unit` where none is written."""

    text: str
    number: Number | None = None
    unit: Unit | None = None


def _amount(text: str, read: Number | None, measure: Unit) -> Amount:
    """Return a value with its unit. Words that scale belong to the value."""
    if measure.scale != 1:
        text = f"({text})\\cdot\\frac{{{measure.scale.numerator}}}{{{measure.scale.denominator}}}"
        if read is not None:
            value = read.value * measure.scale
            read = Number(value, "integer" if value.denominator == 1 else read.kind)
        measure = replace(measure, scale=Fraction(1))
    return Amount(text, read, measure if measure.dimension else None)


def measured(text: str) -> Amount | None:
    r"""Return an amount with its unit: 12 \text{ cm}, \$5, 28%, 90°. None where there is no unit."""
    if (match := _MONEY.fullmatch(text)) is not None:
        value, money = match["sign"] + match["value"].strip(), unit(match["unit"])
        scaled = measured(value)
        if money is None:
            return None
        if scaled is not None:  # $3 million, $5 per hour
            others = () if scaled.unit is None else scaled.unit.dimension
            if any(power > 0 and name in BASES for name, power in others) and scaled.unit != money:
                return None
            per = tuple((f"per {name}", 1) for name, power in others if power < 0)
            return replace(scaled, unit=Unit((*money.dimension, *per), money.factor))
        read = number(value)
        return Amount(value, read, money) if read is not None or not _several(value) else None
    for pattern in (_UNIT_AT_END, _WORD_AT_END):
        match = pattern.fullmatch(text)
        if match is None:
            continue
        value, measure = match["value"].strip(), unit(match["unit"], spaced=bool(match["blank"]))
        read = number(value)
        if measure is None or (measure.angle and _FUNCTION.search(value)):  # sin 30°
            continue
        valued = read is not None or _VALUED.search(value) or (measure.known and "\\text" in match["unit"])
        if valued and (read is not None or not (_several(value) or _NO_AMOUNT.search(value))):
            return _amount(value.replace("°", "") if measure.angle else value, read, measure)
    return None


def _several(text: str) -> bool:
    return len(split(text, COMMA)[0]) > 1
